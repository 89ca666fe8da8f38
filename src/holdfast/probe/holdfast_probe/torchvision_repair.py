"""Repair for a torchvision whose compiled operators do not load with the installed torch: importing it raises because
of operators that a training may never call. (PyPI's torchvision with a CPU build of torch is such a combination.)

torchvision detects this in `torchvision.extension`, before it needs the operators. If they are missing, `nms` and
`qnms` are defined at that point in plain torch. With them the rest of torchvision imports, and `torchvision.ops.nms` is
the function below. Its other compiled operators (roi_align, deform_conv2d, ...) remain missing and raise when they are
called.
"""

import os

from . import protocol
from .import_hooks import after_import

NAMES = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
BLOCK = 128
"""Number of boxes processed at once: this needs memory for a matrix of this many rows by all remaining boxes."""
KIND = "torchvision"
MISSING = "torchvision's compiled operators cannot be loaded with this torch: Holdfast replaces nms with its own"
ADVICE = "install the torchvision version that matches torch %s; roi_align and other operators are still missing"


def install(probe):
    if os.environ.get(protocol.OBSERVE_ONLY) != "1":
        after_import("torchvision.extension", Repair(probe).watch)


class Repair(object):
    def __init__(self, probe):
        self._probe = probe
        self._torch = probe.torch
        self._library = None
        """The operators exist as long as this object does."""

    def watch(self, extension):
        """Define the operators if `torchvision.extension`, which was just imported, could not load them."""
        try:
            if extension._has_ops() or any(self._exists(name) for name in NAMES):
                return
            self._define()
        except Exception as error:
            self._probe.failed("defining torchvision's operators", error)
            return
        after_import("torchvision.ops.boxes", self._replace)
        self._probe.see(KIND, "its operators cannot be loaded, nms is Holdfast's own")
        self._probe.note(MISSING, ADVICE % self._torch.__version__)

    def _exists(self, name):
        """Return whether the operator exists: other code may have defined it already."""
        try:
            getattr(self._torch.ops.torchvision, name)
        except (AttributeError, RuntimeError):
            return False
        return True

    def _define(self):
        library = self._torch.library.Library("torchvision", "DEF")
        for name in NAMES:
            library.define(name + SCHEMA)
            library.impl(name, self.nms, "CompositeExplicitAutograd")
        self._library = library

    def _replace(self, boxes):
        """Replace `nms` when `torchvision.ops.boxes` is imported: the original requires the compiled operators."""
        boxes.nms = self.nms

    def nms(self, boxes, scores, iou_threshold):
        """Return the indices of the boxes to keep, highest score first, like torchvision.ops.nms."""
        return select_boxes(self._torch, boxes, scores, iou_threshold)


def select_boxes(torch, boxes, scores, iou_threshold):
    """Go through the boxes by score and keep each box unless it overlaps a kept one by more than the threshold. All on
    the CPU: devices that select wrong rows by a mask are among those that need this.
    """
    device = boxes.device
    boxes, scores = boxes.detach().cpu(), scores.detach().cpu()
    if boxes.dtype not in (torch.float32, torch.float64):
        boxes = boxes.float()
    left = scores.sort(stable=True, dim=0, descending=True)[1]
    limit = _round_down(torch, float(iou_threshold), boxes.dtype)
    kept = []
    while left.numel():
        first, rest = left[:BLOCK], left[BLOCK:]
        overlapping = (_overlaps(torch, boxes[first], boxes[first]) > limit).triu_(1)
        first = first[_find_staying(torch, overlapping)]
        kept.append(first)
        if rest.numel():
            rest = rest[~(_overlaps(torch, boxes[first], boxes[rest]) > limit).any(0)]
        left = rest
    result = torch.cat(kept) if kept else torch.empty((0,), dtype=torch.int64)
    return result.to(device)


def _overlaps(torch, some, others):
    """Return the intersection over union of each pair, computed by the same sums as in torchvision."""
    x1, y1, x2, y2 = some[:, None].unbind(2)
    left, top, right, bottom = others[None].unbind(2)
    width = (torch.minimum(x2, right) - torch.maximum(x1, left)).clamp_(min=0)
    both = width.mul_((torch.minimum(y2, bottom) - torch.maximum(y1, top)).clamp_(min=0))
    either = (x2 - x1) * (y2 - y1) + (right - left) * (bottom - top) - both
    return both.div_(either)


def _find_staying(torch, overlapping):
    """Return which boxes stay if each box overlapped by an earlier box that stays is removed. The result no longer
    changes after as many rounds as the longest chain of overlapping boxes, which is short.
    """
    stays = torch.ones(len(overlapping), dtype=torch.bool)
    while True:
        previous, stays = stays, ~(overlapping & stays[:, None]).any(0)
        if torch.equal(previous, stays):
            return stays


def _round_down(torch, threshold, dtype):
    """Return the largest number of this dtype up to the threshold: comparisons give the same result as in full precision."""
    rounded = torch.tensor(threshold, dtype=dtype)
    if rounded.item() > threshold:
        rounded = torch.nextafter(rounded, torch.tensor(float("-inf"), dtype=dtype))
    return rounded
