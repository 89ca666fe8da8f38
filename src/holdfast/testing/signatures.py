"""Building blocks for the cases of text signatures: a Mac, a printed line, an end with a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.schema import events
from holdfast.testing.histories import ended, started, trains

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def on_mac(
    torch: str = "2.9.1", macos: str = "15.5", environment: Mapping[str, str] | None = None
) -> list[events.AnyEvent]:
    """Make a run on an Apple computer that has started to train."""
    run, attempt = started()
    assert isinstance(run, events.RunStarted)
    mac = msgspec.structs.replace(run, platform=f"macOS-{macos}-arm64-arm-64bit", environment=dict(environment or {}))
    return [mac, attempt, *(_with_torch(event, torch) for event in trains())]


def unknown_machine() -> list[events.AnyEvent]:
    """Make a log that does not name its platform."""
    run, attempt = started()
    assert isinstance(run, events.RunStarted)
    return [msgspec.structs.replace(run, platform=""), attempt]


def _with_torch(event: events.AnyEvent, torch: str) -> events.AnyEvent:
    if isinstance(event, (events.TorchImported, events.ProbeAttached)):
        return msgspec.structs.replace(event, torch=torch)
    return event


def device(name: str) -> list[events.AnyEvent]:
    """Report the device that the training uses."""
    return [events.Memory(at=1.5, step=1, device=name)]


def printed(rule: str, text: str, *, count: int = 1, stream: str = "stderr") -> list[events.AnyEvent]:
    return [events.OutputMatched(at=5.0, rule=rule, stream=stream, text=text, count=count)]


def raises(*message: str, through: Iterable[str] = (), last_step: int = 10) -> list[events.AnyEvent]:
    """End with an exception whose traceback contains these frames."""
    words = ["Traceback (most recent call last):", '  File "/home/ann/train.py", line 31, in <module>', "    main()"]
    words += [f"  File {frame}" for frame in through]
    return ended(1, words=[*words, *message], last_step=last_step)
