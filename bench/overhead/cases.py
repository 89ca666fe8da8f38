"""The programs, the batch size at which a step takes the intended time on this machine, and the limits for Holdfast."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WARMUP = 20
NEAR = 0.07
MAX_TRIES = 10


@dataclass(frozen=True)
class Case:
    name: str
    net: str
    optimizer: str
    target_ms: float
    limit: float | None
    """Holdfast's limit for the loop; None if only the figure is of interest."""
    peers: bool = False
    threads: int | None = 1
    """None: torch's default."""
    first_batch: int = 16
    guard: bool = False
    """Also run under `holdfast.guard`, with its snapshots. Only for turns.py."""

    def steps(self, loop_seconds: float) -> int:
        return max(30, round(1e3 * loop_seconds / self.target_ms))


CASES = (
    Case("1 ms, MLP, AdamW", "mlp", "adamw", 1, 1.10, peers=True),
    Case("1 ms, MLP, SGD", "mlp", "sgd", 1, 1.10),
    Case("10 ms, CNN, AdamW", "cnn", "adamw", 10, 1.02, peers=True),
    Case("10 ms, CNN, SGD", "cnn", "sgd", 10, 1.02),
    Case("10 ms, 204 tensors, AdamW", "deep", "adamw", 10, 1.02, peers=True, first_batch=8),
    Case("10 ms, 204 tensors, SGD", "deep", "sgd", 10, 1.02, first_batch=8),
    Case("100 ms, CNN, AdamW", "cnn-wide", "adamw", 100, 1.01, peers=True, first_batch=128),
    Case("10 ms, CNN, AdamW, default threads", "cnn", "adamw", 10, None, threads=None),
)
GUARDED = (
    Case("10 ms, CNN, AdamW, guard", "cnn", "adamw", 10, 1.03, guard=True),
    Case("10 ms, 204 tensors, AdamW, guard", "deep", "adamw", 10, 1.03, first_batch=8, guard=True),
)


@dataclass(frozen=True)
class Sized:
    case: Case
    batch: int
    measured_ms: float

    def config(self, steps: int, warmup: int = WARMUP) -> dict[str, Any]:
        return {
            "net": self.case.net,
            "optimizer": self.case.optimizer,
            "batch": self.batch,
            "samples": max(1024, 8 * self.batch),
            "warmup": warmup,
            "steps": steps,
        }

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.case), "batch": self.batch, "calibrated_ms": self.measured_ms}


def calibrate(case: Case, step_ms: Callable[[Sized, int], float]) -> Sized:
    """Find the batch size at which a bare step takes the intended time.

    Time grows approximately as a + b * batch, so two points give the next guess. If noise makes that guess useless, bisect between
    a batch size that is too fast and one that is too slow.
    """
    steps = max(15, round(600 / case.target_ms))
    tried: dict[int, float] = {}
    batch = case.first_batch
    for _ in range(MAX_TRIES):
        tried[batch] = step_ms(Sized(case, batch, 0.0), steps)
        if abs(tried[batch] / case.target_ms - 1) < NEAR:
            break
        batch = _next_batch(tried, case.target_ms)
        if batch in tried:
            batch = _between(tried, case.target_ms)
        if batch in tried:
            break
    best = min(tried, key=lambda b: abs(tried[b] / case.target_ms - 1))
    return Sized(case, best, tried[best])


def _next_batch(tried: dict[int, float], target: float) -> int:
    nearest = sorted(tried, key=lambda b: abs(tried[b] - target))[:2]
    if len(nearest) == 1:
        guess = nearest[0] * target / tried[nearest[0]]
    else:
        (b0, b1), (t0, t1) = nearest, (tried[nearest[0]], tried[nearest[1]])
        slope = (t1 - t0) / (b1 - b0)
        guess = b0 + (target - t0) / slope if slope > 0 else b0 * target / t0
    return min(4096, max(2, round(guess)))


def _between(tried: dict[int, float], target: float) -> int:
    fast = max((batch for batch, ms in tried.items() if ms < target), default=1)
    slow = min((batch for batch, ms in tried.items() if ms > target and batch > fast), default=2 * fast)
    return (fast + slow) // 2
