"""The training process of a drill: `python -m holdfast.simulator.program NAME` runs the drill's program and nothing else."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    module = importlib.import_module("holdfast.simulator.drills." + sys.argv[1].replace("-", "_"))
    module.DRILL.program()


if __name__ == "__main__":
    main()
