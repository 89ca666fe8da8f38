"""Building blocks for the cases of rules about losses, metrics and learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import frameworks
from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FRAMEWORK = frameworks.names()[0]
"""The framework of cases that need one."""


def steps(
    *losses: float | str,
    first: int = 1,
    rate: float | Sequence[float] = 0.01,
    norm: float | Sequence[float] | None = None,
    loader: bool = False,
    other_steps: Mapping[str, int] | None = None,
) -> list[events.AnyEvent]:
    """Make one step per loss. `rate` and `norm` apply to all steps, or give one value per step."""

    def value_at(value: float | Sequence[float], n: int) -> float:
        return value if isinstance(value, (int, float)) else value[n]

    return [
        events.Step(
            at=1.0 + n,
            step=first + n,
            seconds=0.1,
            loss=loss,
            lr=[value_at(rate, n)],
            grad_norm=None if norm is None else value_at(norm, n),
            batch=f"{first + n:016x}" if loader else None,
            samples=8 if loader else None,
            other_steps=dict(other_steps) if other_steps else None,
        )
        for n, loss in enumerate(losses)
    ]


def parts(
    count: int, *, first: int = 1, instances: int | None = None, **values: float | Sequence[float]
) -> list[events.AnyEvent]:
    """Make steps with loss components. A component applies to all steps, or gives one value per step."""
    history: list[events.AnyEvent] = []
    for n in range(count):
        components: dict[str, float | str] = {
            name: value if isinstance(value, (int, float)) else value[n] for name, value in values.items()
        }
        total = sum(float(value) for value in components.values())
        history.append(
            events.Step(
                at=1.0 + n, step=first + n, seconds=0.1, loss=total, parts=components, lr=[0.01], instances=instances
            )
        )
    return history


def validations(
    *, first: int = 1, every: int = 100, source: str = FRAMEWORK, **columns: Sequence[float]
) -> list[events.AnyEvent]:
    """Make one validation per epoch. In a column name, `__` stands for `/`: `val__cls_loss`."""
    lengths = {len(column) for column in columns.values()}
    assert len(lengths) == 1
    return [
        events.Metrics(
            at=10.0 * (first + n),
            step=every * (first + n),
            epoch=first + n,
            values={name.replace("__", "/"): column[n] for name, column in columns.items()},
            source=source,
        )
        for n in range(lengths.pop())
    ]


def final(step: int = 1000, **values: float) -> list[events.AnyEvent]:
    """Make the final validation of the best checkpoint."""
    metrics: dict[str, float | str] = {name.replace("__", "/"): value for name, value in values.items()}
    return [events.Metrics(at=500.0, step=step, values=metrics, source=f"{FRAMEWORK}, best.pt at the end")]


def epoch(number: int, *, step: int, planned: int | None = None, source: str = "loader") -> list[events.AnyEvent]:
    return [
        events.Epoch(at=float(step), epoch=number, step=step, seconds=10.0, batches=10, planned=planned, source=source)
    ]


def schedule(name: str, *, step: int, planned: int | None, done: int) -> list[events.AnyEvent]:
    return [events.Schedule(at=float(step), step=step, scheduler=name, planned=planned, done=done)]


def note(code: events.NoteCode, detail: str = "") -> list[events.AnyEvent]:
    return [events.ProbeNote(at=1.0, what="a note", detail=detail, code=code)]
