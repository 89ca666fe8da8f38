"""Building blocks for the cases of rules about gradients, weights, batches and checkpoints."""

from __future__ import annotations

import msgspec

from holdfast.schema import events
from holdfast.testing.histories import trains

SGD = 0.01


def steps(
    count: int,
    *,
    first: int = 1,
    loss: float | None = 1.0,
    norm: float | str | None = None,
    lr: float = SGD,
    batch: str | None = None,
    samples: int | None = None,
    backwards: int = 1,
) -> list[events.AnyEvent]:
    """Make `count` identical steps."""
    return [
        events.Step(
            at=1.0 + number,
            step=number,
            seconds=0.1,
            loss=loss,
            grad_norm=norm,
            lr=[lr],
            batch=batch,
            samples=samples,
            backwards=backwards,
        )
        for number in range(first, first + count)
    ]


def sample(step: int, *, norm: float | str = 1.0, tensors: int = 4, **more: int) -> list[events.AnyEvent]:
    """Make one sample of the gradients at a step."""
    return [events.Gradients(at=float(step), step=step, norm=norm, tensors=tensors, **more)]  # type: ignore[arg-type]


def weight_updates(
    step: int,
    *stuck: events.StuckTensor,
    checked: int = 4,
    moved: int | None = None,
    again: tuple[str, ...] = (),
    zero_input: tuple[str, ...] = (),
) -> list[events.AnyEvent]:
    count = checked - len(stuck) if moved is None else moved
    return [
        events.WeightUpdates(
            at=float(step),
            step=step,
            checked=checked,
            of=checked,
            moved=count,
            stuck=list(stuck),
            moving_again=list(again),
            zero_input=list(zero_input),
        )
    ]


def stuck(
    name: str, ulps: float | None, *, rows: int = 8, of: int = 8, times: int = 1, by_others: bool = False
) -> events.StuckTensor:
    """Make a tensor of which `rows` rows stayed unchanged, of `of` rows with a gradient."""
    return events.StuckTensor(
        name=name, rows=8, with_gradient=of, stuck=rows, update_ulps=ulps, times=times, by_others=by_others
    )


def two_ranks() -> list[events.AnyEvent]:
    return [msgspec.structs.replace(trains()[-1], world_size=2)]


def checksums(step: int, *values: str) -> list[events.AnyEvent]:
    """Make the checksums of all ranks at a step, one value for each rank."""
    return [
        events.Checksum(at=float(step), step=step, rank=rank, value=value, tensors=4)
        for rank, value in enumerate(values)
    ]
