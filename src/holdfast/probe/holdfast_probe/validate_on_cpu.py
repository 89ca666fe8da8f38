"""Validates a checkpoint of Ultralytics once more, on the CPU, in a process of its own.

Run by the supervisor under the interpreter that trained, with one argument in JSON: `{"model", "data", "imgsz", "batch", "task",
"folder"}`. Prints one line of JSON: the metrics, or why there are none.
"""

import json
import sys


class _Notes(object):
    """What a repair says to a probe, where there is none."""

    def __init__(self, torch):
        self.torch = torch

    def see(self, *_):
        pass

    note = failed = see


def main(asked):
    import torch

    from .adapters import torchvision

    torchvision.install(_Notes(torch))
    from ultralytics import YOLO

    found = YOLO(asked["model"], task=asked.get("task")).val(
        data=asked["data"],
        imgsz=asked.get("imgsz") or 640,
        batch=asked.get("batch") or 8,
        device="cpu",
        plots=False,
        verbose=False,
        workers=0,
        project=asked["folder"],
        name="on-cpu",
    )
    return {"values": {str(name): float(value) for name, value in found.results_dict.items()}}


if __name__ == "__main__":
    try:
        said = main(json.loads(sys.argv[1]))
    except Exception as error:
        said = {"why": "%s: %s" % (type(error).__name__, str(error)[:300])}
    print("\nholdfast: " + json.dumps(said), flush=True)
