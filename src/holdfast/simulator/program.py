"""The training process of a drill: `python -m holdfast.simulator.program NAME` runs the drill's program and nothing else."""

from __future__ import annotations

import sys

from holdfast.simulator.drills import find_drill

if __name__ == "__main__":
    drill = find_drill(sys.argv[1])
    assert drill is not None, sys.argv
    drill.program()
