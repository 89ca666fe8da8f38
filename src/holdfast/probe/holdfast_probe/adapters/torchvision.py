"""torchvision whose compiled operators cannot be loaded with the torch that is there: its import raises, over operators that a
training may never call. (PyPI's torchvision beside a CPU build of torch is such a pair.)

torchvision itself finds out, in `torchvision.extension`, before it needs them. Where they are missing, `nms` and `qnms` are
defined then, in plain torch; with them the rest of torchvision imports, and `torchvision.ops.nms` is the function below.
Its other compiled operators (roi_align, deform_conv2d, ...) stay missing and say so when they are called.
"""

import os

from .. import protocol
from ..import_hooks import after_import

NAMES = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
BLOCK = 128
"""Boxes that are settled among themselves at once: a matrix of so many rows and all boxes that are left is held."""
KIND = "torchvision"
MISSING = "torchvision's compiled operators cannot be loaded with this torch: Holdfast's own nms stands in for them"
ADVICE = "install the torchvision that belongs to torch %s; roi_align and its other operators are still missing"


def install(probe):
    if os.environ.get(protocol.OBSERVE_ONLY) != "1":
        after_import("torchvision.extension", Repair(probe).watch)


class Repair(object):
    def __init__(self, probe):
        self._probe = probe
        self._torch = probe.torch
        self._library = None
        """Operators are there for as long as this is."""

    def watch(self, extension):
        """`torchvision.extension` is imported: it has tried to load the operators."""
        try:
            if extension._has_ops() or any(self._is_there(name) for name in NAMES):
                return
            self._define()
        except Exception as error:
            self._probe.failed("defining torchvision's operators", error)
            return
        after_import("torchvision.ops.boxes", self._replace)
        self._probe.see(KIND, "seen: its operators cannot be loaded, nms is Holdfast's own")
        self._probe.note(MISSING, ADVICE % self._torch.__version__)

    def _is_there(self, name):
        """Somebody else may have defined it already."""
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
        """`torchvision.ops.boxes` is imported. Its own function asks for the compiled operators first."""
        boxes.nms = self.nms

    def nms(self, boxes, scores, iou_threshold):
        """The numbers of the boxes that are kept, the best first, as torchvision.ops.nms gives them."""
        return kept_boxes(self._torch, boxes, scores, iou_threshold)


def kept_boxes(torch, boxes, scores, iou_threshold):
    """Each box in the order of scores is kept unless it overlaps one that was kept by more than the threshold.

    All on the CPU: devices that choose wrong rows by a mask are among those that need this.
    """
    device = boxes.device
    boxes, scores = boxes.detach().cpu(), scores.detach().cpu()
    if boxes.dtype not in (torch.float32, torch.float64):
        boxes = boxes.float()
    left = scores.sort(stable=True, dim=0, descending=True)[1]
    limit = _not_above(torch, float(iou_threshold), boxes.dtype)
    kept = []
    while left.numel():
        first, rest = left[:BLOCK], left[BLOCK:]
        overlapping = (_overlaps(torch, boxes[first], boxes[first]) > limit).triu_(1)
        first = first[_first_come(torch, overlapping)]
        kept.append(first)
        if rest.numel():
            rest = rest[~(_overlaps(torch, boxes[first], boxes[rest]) > limit).any(0)]
        left = rest
    found = torch.cat(kept) if kept else torch.empty((0,), dtype=torch.int64)
    return found.to(device)


def _overlaps(torch, some, others):
    """Intersection over union of each of some with each of the others, by the same sums as torchvision's."""
    x1, y1, x2, y2 = some[:, None].unbind(2)
    left, top, right, bottom = others[None].unbind(2)
    width = (torch.minimum(x2, right) - torch.maximum(x1, left)).clamp_(min=0)
    both = width.mul_((torch.minimum(y2, bottom) - torch.maximum(y1, top)).clamp_(min=0))
    either = (x2 - x1) * (y2 - y1) + (right - left) * (bottom - top) - both
    return both.div_(either)


def _first_come(torch, overlapping):
    """Which stay, where each goes that a stayer before it overlaps. The answer no longer changes after as many rounds as the
    longest chain of boxes, each over the next, which is short.
    """
    stays = torch.ones(len(overlapping), dtype=torch.bool)
    while True:
        then, stays = stays, ~(overlapping & stays[:, None]).any(0)
        if torch.equal(then, stays):
            return stays


def _not_above(torch, threshold, dtype):
    """The greatest number of this kind that is not above the threshold: compared with it, boxes answer as in full precision."""
    rounded = torch.tensor(threshold, dtype=dtype)
    if rounded.item() > threshold:
        rounded = torch.nextafter(rounded, torch.tensor(float("-inf"), dtype=dtype))
    return rounded
