"""Validates an Ultralytics checkpoint again, on the CPU, in a separate process.

The supervisor runs this with the training's interpreter and one argument in JSON: `{"model", "data", "imgsz", "batch",
"task", "folder"}`. It prints one line of JSON: the metrics, or why there are none.
"""

import json
import sys


class _NullProbe(object):
    """Stands in for the probe and ignores what is reported to it."""

    def __init__(self, torch):
        self.torch = torch

    def see(self, *_):
        pass

    note = failed = see


def main(request):
    import torch

    from ... import torchvision_repair

    torchvision_repair.install(_NullProbe(torch))
    from ultralytics import YOLO

    metrics = YOLO(request["model"], task=request.get("task")).val(
        data=request["data"],
        imgsz=request.get("imgsz") or 640,
        batch=request.get("batch") or 8,
        device="cpu",
        plots=False,
        verbose=False,
        workers=0,
        project=request["folder"],
        name="on-cpu",
    )
    return {"values": {str(name): float(value) for name, value in metrics.results_dict.items()}}


if __name__ == "__main__":
    try:
        reply = main(json.loads(sys.argv[1]))
    except Exception as error:
        reply = {"why": "%s: %s" % (type(error).__name__, str(error)[:300])}
    print("\nholdfast: " + json.dumps(reply), flush=True)
