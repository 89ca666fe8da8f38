"""Building blocks for the cases of rules: short event histories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.schema.units import GIB
from holdfast.storage.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

History = events.AnyEvent | Iterable["History"]
"""Events, and sequences of them to any depth."""


def started(
    resume: events.Resume | None = None, attempt: int = 1, memory_budget: int | None = None
) -> list[events.AnyEvent]:
    """Start a run on a machine with 16 GiB, and its first attempt."""
    return [
        events.RunStarted(
            at=0.0,
            schema=events.SCHEMA,
            run="case-1",
            command=["python", "train.py"],
            cwd="/work",
            holdfast="0",
            platform="linux",
            python="3.11",
            supervisor=1,
            memory_total=16 * GIB,
            memory_budget=memory_budget,
        ),
        events.AttemptStarted(at=0.0, attempt=attempt, pid=100, command=["python", "train.py"], resume=resume),
    ]


def trains() -> list[events.AnyEvent]:
    """Attach the probe to a training."""
    return [
        events.Interpreter(at=0.1, pid=100, ppid=1, python="3.11.7", executable="/venv/bin/python"),
        events.TorchImported(at=0.2, pid=100, torch="2.13.0"),
        events.ProbeAttached(
            at=0.3, schema=1, pid=100, rank=0, python="3.11.7", executable="/venv/bin/python", torch="2.13.0"
        ),
    ]


def losses(*values: float | str, first: int = 1, grad_norm: float | None = None) -> list[events.AnyEvent]:
    return [
        events.Step(at=1.0 + n, step=first + n, seconds=0.1, loss=value, lr=[0.01], grad_norm=grad_norm)
        for n, value in enumerate(values)
    ]


def window(first: int, last: int, mean: float, *, zeros: int = 0, nonfinite: int = 0) -> list[events.AnyEvent]:
    n = last - first + 1 - nonfinite
    spread = events.WindowStats(
        n=n, mean=mean, low=mean, high=mean, first=mean, last=mean, zeros=zeros, nonfinite=nonfinite
    )
    return [events.Steps(at=float(last), first=first, last=last, seconds=1.0, loss=spread)]


def sample(
    now: float,
    *,
    available: float = 10.0,
    swap: float = 0.0,
    swap_in: float | None = None,
    load: float | None = None,
    cpu: float | None = None,
    rss: float = 2.0,
) -> events.Sample:
    """Make one sample of the machine; amounts are in GiB."""
    return events.Sample(
        at=now,
        rss=int(rss * GIB),
        processes=1,
        available=int(available * GIB),
        swap=int(swap * GIB),
        swap_in=None if swap_in is None else int(swap_in * GIB),
        disk_free=100 * GIB,
        load=load,
        cpu=cpu,
    )


def memory(available: float, *, rss: float = 2.0, swap: float = 0.0) -> list[events.AnyEvent]:
    return [sample(50.0, available=available, rss=rss, swap=swap)]


def ended(
    code: int | None = None,
    signal: str | None = None,
    *,
    last_step: int = 10,
    words: Iterable[str] = (),
    evidence: Iterable[tuple[str, str]] = (),
    stopped_by: events.StopCause | None = None,
    rule: str = "",
) -> list[events.AnyEvent]:
    return [
        events.AttemptEnded(
            at=99.0,
            attempt=1,
            code=code,
            signal=signal,
            first_step=1 if last_step else None,
            last_step=last_step,
            seconds=98.0,
            stopped_by="rule" if rule else stopped_by,
            rule=rule,
            last_lines=list(words),
            evidence=[events.Evidence(source, text) for source, text in evidence],
        )
    ]


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/ann/train.py", line 31, in <module>',
    "    loss = model(batch)",
)


def join_history(*parts: History) -> list[events.AnyEvent]:
    """Join the parts of a history. Add the start of a run if they do not begin with it."""
    joined = list(_flatten(parts))
    return joined if joined and isinstance(joined[0], events.RunStarted) else [*started(), *joined]


def _flatten(history: History) -> Iterator[events.AnyEvent]:
    if isinstance(history, events.Event):
        yield history
    else:
        for part in history:
            yield from _flatten(part)


def entries(history: Iterable[events.AnyEvent]) -> Iterator[Entry]:
    """Yield the history as journal entries, with the probe's events from rank 0."""
    for event in history:
        from_probe = isinstance(event, events.ProbeEvent)
        yield Entry(event, 1, 0 if from_probe else None)
