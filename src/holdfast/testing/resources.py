"""Building blocks for the cases of rules about resources: long runs described by a few numbers, in GiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.schema.devices import parse_device
from holdfast.schema.units import GIB
from holdfast.testing.histories import started, trains
from holdfast.testing.series import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = 16.0


def _value_at(value: float | Callable[[float], float], part: float) -> float:
    return value(part) if callable(value) else value


def memory_history(
    *,
    samples: int = 240,
    every: float = 30.0,
    steps: int = 15,
    epoch_of: int | None = 150,
    planned: int | None = None,
    rss: float | Callable[[float], float] = 2.0,
    others: float | Callable[[float], float] = 2.0,
    swap: float | Callable[[float], float] = 0.0,
    disk: float | Callable[[float], float] = 100.0,
    processes: float | Callable[[float], float] = 1,
    driver: float | Callable[[float], float] | None = None,
    allocated: float | Callable[[float], float] = 0.4,
    device: str = "mps:0",
    device_limit: float | None = None,
) -> list[events.AnyEvent]:
    """Make a run with `samples` memory samples, `every` seconds and `steps` steps apart.

    A value that changes is a function of the part of the run that has passed, from 0 to 1.
    """
    history = [*started(), *trains()]
    for sample in range(1, samples + 1):
        part, now, last = sample / samples, sample * every, sample * steps
        fetched = steps if epoch_of else 0
        history.append(
            events.Steps(
                at=now,
                first=last - steps + 1,
                last=last,
                seconds=every,
                slowest=every / steps,
                batches=fetched,
                different=fetched,
            )
        )
        if epoch_of and last % epoch_of == 0:
            history.append(epoch(last // epoch_of, now, epoch_of / steps * every, step=last, planned=planned))
        on_device = _value_at(driver, part) if driver is not None else 0.0
        if driver is not None:
            sizes = on_device, _value_at(allocated, part), device_limit
            history.append(_device_memory(now, last, device, *sizes))
        used = (
            _value_at(rss, part)
            + _value_at(others, part)
            + (on_device if parse_device(device).kind.shares_memory else 0.0)
        )
        history.append(
            events.Sample(
                at=now,
                rss=int(_value_at(rss, part) * GIB),
                processes=int(_value_at(processes, part)),
                available=int(max(0.0, MACHINE - used) * GIB),
                swap=int(_value_at(swap, part) * GIB),
                disk_free=int(_value_at(disk, part) * GIB),
            )
        )
    return history


def _device_memory(
    now: float, step: int, device: str, driver: float, allocated: float, limit: float | None
) -> events.Memory:
    in_bytes = [None if size is None else int(size * GIB) for size in (driver, allocated, limit)]
    return events.Memory(
        at=now, step=step, device=device, driver=in_bytes[0] or 0, allocated=in_bytes[1] or 0, limit=in_bytes[2]
    )


def epoch(
    number: int, now: float, seconds: float, *, step: int = 0, planned: int | None = None, batches: int = 0
) -> events.Epoch:
    return events.Epoch(
        at=now, epoch=number, step=step, seconds=seconds, batches=batches, planned=planned, source=FRAMEWORK
    )


def epochs(*seconds: float) -> list[events.AnyEvent]:
    """Make a history that contains only epochs, like an imported log."""
    history, now = started(), 0.0
    for number, duration in enumerate(seconds, 1):
        now += duration
        history.append(epoch(number, now, duration))
    return history
