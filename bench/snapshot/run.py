"""Time that a snapshot blocks the training, compared with `torch.save` of the same state on the same thread. See README.md.

python bench/snapshot/run.py [--pairs N] [--check]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from holdfast.probe.holdfast_probe.snapshots.capture import Capture
from holdfast.probe.holdfast_probe.snapshots.rng import get_rng_states
from holdfast.probe.holdfast_probe.snapshots.stateful import StatefulObjects

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 0.20


def make_training() -> tuple[dict[str, object], Callable[[], None]]:
    """Return YOLO11n, its averaged model and AdamW (about 1,760 tensors, 42 MB), and a function for one training step."""
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolo11n.yaml", nc=80, verbose=False)
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        outputs = model(torch.rand(1, 3, 64, 64))
        heads = outputs.values() if isinstance(outputs, dict) else outputs
        sum(head.float().square().mean() for head in heads if isinstance(head, torch.Tensor)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return {"model": model, "average": average, "optimizer": optimizer}, step


def measure_ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the limit is not met")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts, step = make_training()
    capture, objects = Capture(torch), StatefulObjects(torch, parts)

    def collect() -> dict[str, object]:
        return {"parts": objects.state(), "rng": get_rng_states(torch)}

    capture.take(collect())
    block = torch.empty(capture.bytes, dtype=torch.uint8)
    times: dict[str, list[float]] = {"snapshot": [], "torch.save": [], "memcpy": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        for _ in range(options.pairs):
            step()
            times["torch.save"].append(
                measure_ms(lambda: torch.save({n: p.state_dict() for n, p in parts.items()}, path))
            )  # type: ignore[attr-defined]
            step()
            times["snapshot"].append(measure_ms(lambda: capture.take(collect())))
            step()
            times["memcpy"].append(measure_ms(lambda: block.copy_(capture._block[: capture.bytes])))  # noqa: SLF001
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["snapshot"], times["torch.save"], strict=True))
    print(f"state: {capture.bytes / 1e6:.1f} MB in {len(capture.layouts)} tensors, {options.pairs} interleaved rounds")
    for name, value in medians.items():
        print(f"{name:12} {value:8.1f} ms  {value / medians['torch.save']:6.1%} of torch.save")
    print(f"the training waits {ratio:.1%} of torch.save (limit {LIMIT:.0%}): {'met' if ratio <= LIMIT else 'not met'}")
    return 1 if options.check and ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
