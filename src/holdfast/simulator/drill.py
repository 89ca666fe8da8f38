"""The definition of a drill: one known failure, a training that shows it, and what Holdfast must report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MachineKind = Literal["real", "unified memory", "falls asleep"]


@dataclass(frozen=True)
class Drill:
    name: str
    description: str
    """One line: what goes wrong."""
    reproduces: str
    """The field report or the signature, with its sources."""
    fault: str
    """Which operator fails or when, and how."""
    program: Callable[[], None]
    """The training. It runs in a separate process under the supervisor and does not know about it."""
    finds: Mapping[str, Literal["note", "warn", "fatal"]]
    """Rules that must report a finding -> the minimum severity."""
    verdicts: tuple[str, ...]
    """The acceptable verdicts."""
    within_steps: int | None = None
    """The maximum number of steps from the fault to the finding, for each of the rules in `finds`."""
    cause: str | None = None
    """The expected cause of the last attempt's end."""
    expected_words: tuple[str, ...] = ()
    """Texts that must occur in the findings' messages or evidence."""
    may_find: tuple[str, ...] = ()
    """Other rules that may be fatal for the same fault. If `cause` is set, all exit rules may be fatal too."""
    attempts: int = 1
    """The expected number of attempts."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, as `holdfast run` would derive them from its options."""
    machine: MachineKind = "real"
    accelerator: bool = True
    """Whether the drill needs the simulated accelerator."""
    needs: tuple[str, ...] = ("torch",)
    """Packages that must be installed."""
    has_fault: bool = True
    """False for a healthy training."""
    is_quick: bool = True
    """Whether it takes little more than the start of a training. Other drills must wait or take long to start."""
