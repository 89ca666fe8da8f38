"""What a check is: one question to ask before hours are spent, with its page of documentation.

A check is a file with a `CHECK`. Its `run` gets the ground that a training would start on and gives an `Answer`: one line that
says what holds ("2,000 images, all readable"), and a `Finding` for everything that does not. What it cannot look at it says
with `NotChecked`; should it raise anything else, or take too long, that is said in its place and nobody's training suffers.

Nothing here imports torch, or anything heavy, into this process. What needs it is asked of the user's own interpreter
(`ground.ask`), as a program of its own that is ended when the time is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.process.sensors import free_disk
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.machine import Machine
    from holdfast.preflight.checks.forecast_trial import ShortRun
    from holdfast.preflight.checks.interpreter import Interpreter, Reply
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Confidence, Severity

Kind = Literal["environment", "data", "device", "learning", "forecast"]
KINDS: tuple[Kind, ...] = ("environment", "data", "device", "learning", "forecast")
Status = Literal["passed", "warn", "fatal", "not checked"]
Need = Literal["interpreter", "torch", "data", "command", "plan"]


PythonRunner = Callable[[Path, list[str], str, float, "Callable[[dict[str, Any]], None] | None"], "Reply"]


class NotChecked(Exception):
    """Raised by a check that has nothing to look at, or cannot; its text is the reason."""


@dataclass(frozen=True)
class Answer:
    message: str
    """One line, true whatever was found: what was looked at, with its numbers."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckContext:
    """What a training would start on. Everything in it is known before the first check, or asked for by a function, so
    that a check can be held to recorded grounds.
    """

    cwd: Path
    machine: Machine
    environment: Mapping[str, str]
    """The variables that the training would get."""
    interpreter: Interpreter | None = None
    """Facts of the Python that the training would run under; None where there was none to ask."""
    no_interpreter: str = ""
    """Why not."""
    is_guessed: bool = False
    """The training may well run under another Python: its command does not tell."""
    command: tuple[str, ...] = ()
    plan: Plan | None = None
    device: str | None = None
    """As asked for: "cpu", "mps", "cuda", "cuda:1", "auto", ...; None where nobody said."""
    imports: frozenset[str] = frozenset()
    """Packages that the training's own script imports, where it can be read."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the framework, as far as plan or command tell: data, model, imgsz, batch, workers, cache, ..."""
    data: Path | None = None
    """The YAML file of a YOLO data set, where one is known; it need not exist."""
    write_split: Path | None = None
    """A folder into which a better split may be written; None: only tell of it."""
    run_python: PythonRunner | None = None
    """How the user's interpreter is asked; `ask` is the way to it."""
    confine_writes: bool = True
    """Whether a dry run is kept from writing outside of its scratch, where the system can."""
    make_dry_run: Callable[[CheckContext], DryRunResult] | None = None
    """How the dry run is made, in recorded contexts; None: for real."""
    deadline: Callable[[], float] = lambda: 60.0
    notify: Callable[[int, int | None, str], None] = lambda _done, _total, _what: None
    """For what takes long: how many of how many, and of what; total None where that is not known."""
    short_run: ShortRun | None = None
    """What a short trial of the plan measured, where one was made already."""
    free_disk: Callable[[Path], int] = free_disk
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def seconds_left(self) -> float:
        """For this check; what it starts has to end within them."""
        return self.deadline()

    def ask(
        self,
        program: Path,
        *arguments: str,
        given: str = "",
        seconds: float | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> Reply:
        """Runs a program (a file of the standard library and theirs, Python 3.9) under the user's interpreter, with their
        environment, in the folder of the command; `given` is its standard input. It prints JSON, an object a line: they
        are in what is returned, and `on_line` gets each as it comes. Never raises, ends it in time, and may be called
        from several threads.
        """
        assert self.run_python is not None, "a check that asks says so in its needs"
        return self.run_python(
            program, list(arguments), given, min(self.seconds_left, seconds or self.seconds_left), on_line
        )

    @property
    def on_mac(self) -> bool:
        return self.interpreter is not None and self.interpreter.on_mac

    @property
    def uses_ultralytics(self) -> bool:
        """As far as is known: by the plan, by the command, by the script's own imports."""
        if self.plan is not None and self.plan.trainer == "ultralytics":
            return True
        return "ultralytics" in self.imports or any(
            Path(word).name in ("yolo", "ultralytics") for word in self.command[:4]
        )

    def trains_on(self, kind: str) -> bool | None:
        """Whether it will train on this kind of device ("mps", "cuda", "cpu"); None where that is not known."""
        return None if self.device in (None, "auto") else device_kind(self.device) == kind


@dataclass(frozen=True)
class Case:
    """A recorded context, and what the check must make of it."""

    description: str
    context: CheckContext
    expected: Status


@dataclass(frozen=True)
class Check:
    id: str
    """Stable, kebab-case, the file's name."""
    kind: Kind
    run: Callable[[CheckContext], Answer]
    page: str
    """The module's docstring: what it asks, why, what to do, sources."""
    needs: tuple[Need, ...] = ()
    """Without these it is not run, and says so."""
    seconds: float = 30.0
    """It is given up after that."""
    cases: tuple[Case, ...] = ()


def finding(
    check: str,
    severity: Severity,
    message: str,
    *,
    evidence: list[str] | None = None,
    remedies: list[str] | None = None,
    confidence: Confidence = "proven",
) -> Finding:
    return Finding(
        rule=check,
        severity=severity,
        message=message,
        evidence=evidence or [],
        remedies=remedies or [],
        confidence=confidence,
    )


def missing(check: Check, context: CheckContext) -> str | None:
    """Why the check cannot be run on this ground, or None."""
    python = context.interpreter
    for need in check.needs:
        if need in ("interpreter", "torch") and (python is None or context.run_python is None):
            return context.no_interpreter or "there is no Python to ask"
        if need == "torch" and python is not None and python.torch is None:
            return python.no_torch
        if need == "data" and context.data is None:
            return "no data set is known: name it with --data DATA.yaml, or check a plan"
        if need == "plan" and context.plan is None:
            return "it is about a plan: holdfast check PLAN.toml"
        if need == "command" and not context.command and context.plan is None:
            return "it needs a training to look at: holdfast check -- COMMAND, or a plan"
    return None


def device_kind(device: str | None) -> str:
    """What "0", "0,1" and "cuda:1" have in common is "cuda"; "mps:0" is "mps"."""
    text = str(device if device is not None else "").strip().lower().strip("[]() ")
    if text.lstrip("-").replace(",", "").replace(" ", "").isdigit():
        return "cuda"
    return text.partition(":")[0]
