"""What a drill is: one known failure, the training that shows it, and what Holdfast must make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MachineFactory = Literal["as it is", "unified memory", "falls asleep"]


@dataclass(frozen=True)
class Drill:
    name: str
    description: str
    """One line: what goes wrong."""
    reproduces: str
    """The field report or the signature, with its sources."""
    fault: str
    """Which operator or which moment, and how it fails."""
    program: Callable[[], None]
    """The training. It runs in a process of its own, under the supervisor, and knows nothing of it."""
    finds: Mapping[str, Literal["note", "warn", "fatal"]]
    """Rules that must speak, and how severely at least."""
    verdicts: tuple[str, ...]
    """Any of these is right."""
    within: int | None = None
    """So many steps after the fault at most, for each of these rules."""
    cause: str | None = None
    """What the last attempt's end must be put down to."""
    explained: tuple[str, ...] = ()
    """Words that must be in what is said, or in its evidence."""
    also: tuple[str, ...] = ()
    """Further rules that may be fatal about the same fault. Where the cause is given, other rules about the end may be too."""
    attempts: int = 1
    """How often the training is to be started in all."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, as `holdfast run` would make them of its options."""
    world: MachineFactory = "as it is"
    accelerator: bool = True
    """Whether it needs the simulated accelerator."""
    needs: tuple[str, ...] = ("torch",)
    """Packages that this Python must have."""
    fires: bool = True
    """False for a training in which nothing is wrong."""
    quick: bool = True
    """Little more than the start of a training; the others must wait for something, or take long to start."""
