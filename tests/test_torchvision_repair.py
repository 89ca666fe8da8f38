"""torchvision beside a torch that it was not built for: its import works, and its nms is right."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import probe_harness
import pytest
import torch

from holdfast.probe.holdfast_probe.torchvision_repair import BLOCK, Repair, select_boxes

SCRIPT = """
import sys, torch
try:
    import torchvision
except RuntimeError as error:
    print("raised", "nms" in str(error))
    sys.exit()
from torchvision.ops import nms, batched_nms
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
scores, kinds = torch.tensor([0.5, 0.9, 0.1]), torch.tensor([0, 1, 0])
print(nms(boxes, scores, 0.5).tolist(), torchvision.ops.nms(boxes, scores, 0.9).tolist())
print(torch.ops.torchvision.nms(boxes, scores, 0.5).tolist(), batched_nms(boxes, scores, kinds, 0.5).tolist())
print("ultralytics" in sys.modules, torchvision.extension._has_ops())
torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
"""


def one_by_one(boxes, scores, threshold):
    """As it is defined: the best of those that are left stays, and what overlaps it goes."""
    left = sorted(range(len(scores)), key=lambda number: -scores[number].item())
    kept = []
    while left:
        best, *left = left
        kept.append(best)
        left = [other for other in left if not overlap(boxes[best], boxes[other]) > threshold]
    return kept


def overlap(one, other):
    width = (torch.minimum(one[2], other[2]) - torch.maximum(one[0], other[0])).clamp(min=0)
    both = width * (torch.minimum(one[3], other[3]) - torch.maximum(one[1], other[1])).clamp(min=0)
    area = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - both
    return (both / area).item()


@pytest.mark.parametrize("count", [0, 1, BLOCK + 1, 2 * BLOCK + 30])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_nms_is_what_it_is_defined_to_be(count, threshold):
    """Crowded boxes, some without extent and some twice, several with the same score, more than one block of them."""
    torch.manual_seed(count)
    corners = (torch.rand(count, 2) * 60).round()
    boxes = torch.cat((corners, corners + (torch.rand(count, 2) * 30).round()), 1)
    scores = (torch.rand(count) * 50).round() / 50
    assert select_boxes(torch, boxes, scores, threshold).tolist() == one_by_one(boxes, scores, threshold)


def test_a_chain_of_boxes_is_followed_to_its_end():
    """Each overlaps the next: every other one stays."""
    starts = torch.arange(300.0) * 4
    boxes = torch.stack((starts, torch.zeros(300), starts + 6, torch.ones(300)), 1)
    assert select_boxes(torch, boxes, torch.arange(300.0, 0, -1), 0.1).tolist() == list(range(0, 300, 2))


def test_the_threshold_is_not_rounded():
    """An overlap of 0.1 in single precision is above 0.1, and that box goes, as in torchvision's own; 0.7 is below 0.7."""
    scores = torch.tensor([1.0, 0.5])
    for height, threshold, kept in ((1, 0.1, [0]), (7, 0.7, [0, 1])):
        boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, height]])
        assert select_boxes(torch, boxes, scores, threshold).tolist() == one_by_one(boxes, scores, threshold) == kept


def test_boxes_in_half_precision():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 7], [0, 0, 2, 2]], dtype=torch.half)
    assert select_boxes(torch, boxes, torch.tensor([1.0, 0.5, 0.2]).half(), 0.6).tolist() == [0, 2]


def test_operators_that_load_are_left_alone():
    """And so is what somebody else has defined."""

    def fail(*_, **__):
        raise AssertionError

    there = SimpleNamespace(
        ops=SimpleNamespace(torchvision=SimpleNamespace(nms=1)), library=SimpleNamespace(Library=fail)
    )
    repair = Repair(SimpleNamespace(torch=there, failed=fail, see=fail, note=fail))
    repair.watch(SimpleNamespace(_has_ops=lambda: True))
    repair.watch(SimpleNamespace(_has_ops=lambda: False))


@pytest.fixture(scope="module")
def mismatched():
    """This environment's torchvision is such a case."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False)
    if "torchvision::nms does not exist" not in done.stderr:
        pytest.skip("torchvision loads here")


@pytest.mark.usefixtures("mismatched")
def test_import_torchvision_works_under_the_probe(tmp_path):
    """With an nms that is right everywhere that it is reached from, and it is said."""
    probed = probe_harness.run(tmp_path, SCRIPT)
    assert probed.out.splitlines() == ["[1, 2] [1, 0, 2]", "[1, 2] [1, 0, 2]", "False False"]
    assert any("cannot be loaded" in note for note in probed.notes)
    assert "Holdfast's own" in probed.coverage.seen["torchvision"]


@pytest.mark.usefixtures("mismatched")
def test_nothing_is_repaired_where_it_only_observes(tmp_path):
    probed = probe_harness.run(tmp_path, SCRIPT, HOLDFAST_OBSERVE_ONLY="1")
    assert probed.out == "raised True\n"
