"""Runs the canaries (checks for operators known to fail on some devices) on the named devices.

Their source text comes on standard input.
"""

import json
import sys


def emit(**values):
    print(json.dumps(values), flush=True)


def main(devices, text):
    sys.path[:] = [entry for entry in sys.path if entry]
    import torch

    canaries = {"__name__": "canaries"}
    exec(compile(text, "canaries.py", "exec"), canaries)  # noqa: S102 - one of Holdfast's own files
    for device in devices:
        emit(trying=device)
        emit(device=device, results=canaries["run_all"](torch, device))


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin.read())
