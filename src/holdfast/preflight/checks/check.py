"""The definition of a check: one question to answer before hours of training, with its documentation page.

A check is a module with a `CHECK`. Its `run` function gets the context that the run would start in and returns an `Answer`: one
line with the result ("2,000 images, all readable") and a `Finding` for each problem. A check raises `NotChecked` if it cannot inspect
something. Any other exception or a timeout is reported as that check's result and does not affect the other checks.

Nothing here imports torch, or anything heavy, into this process. A check that needs torch runs a separate program under the user's
own interpreter (`context.run_program`), which is killed when its time is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.frameworks import COMMAND, default, find_framework
from holdfast.process.sensors import free_disk
from holdfast.schema.devices import device_kind
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.frameworks.base import Framework
    from holdfast.machine import Machine
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
    """Raised by a check that has nothing to inspect or cannot inspect it; the text is the reason."""


@dataclass(frozen=True)
class Answer:
    message: str
    """One line that is true regardless of the findings: what was inspected, with figures."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckContext:
    """What the run would start with. Every value is known before the first check or comes from a function, so that a check can
    be tested with recorded contexts.
    """

    cwd: Path
    machine: Machine
    environment: Mapping[str, str]
    """The environment variables of the training process."""
    interpreter: Interpreter | None = None
    """Facts about the Python interpreter that the training script would use; None if no interpreter could be queried."""
    no_interpreter: str = ""
    """Why there is no interpreter."""
    is_guessed: bool = False
    """The command does not name its Python, so the script may run under a different one."""
    command: tuple[str, ...] = ()
    plan: Plan | None = None
    device: str | None = None
    """As requested: "cpu", "mps", "cuda", "cuda:1", "auto", ...; None if no device was requested."""
    imports: frozenset[str] = frozenset()
    """Packages that the training script itself imports, if the script can be read."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Framework settings found in the plan or the command: data, model, imgsz, batch, workers, cache, ..."""
    data: Path | None = None
    """The YAML file of a dataset, if one is known; the file may not exist."""
    write_split: Path | None = None
    """A folder to write a better split to; None: only report the split."""
    run_python: PythonRunner | None = None
    """Runs a program under the user's interpreter. Checks call `run_program` instead."""
    confine_writes: bool = True
    """Whether to prevent the dry run from writing outside its scratch folder, if the system can."""
    make_dry_run: Callable[[CheckContext], DryRunResult] | None = None
    """Returns the dry run of a recorded context; None: make a real dry run."""
    deadline: Callable[[], float] = lambda: 60.0
    notify: Callable[[int, int | None, str], None] = lambda _done, _total, _what: None
    """Reports progress: done, total and the unit; total is None if it is unknown."""
    short_run: Any = None
    """The measurements of a short run of the plan, if the framework has already made one."""
    free_disk: Callable[[Path], int] = free_disk
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def seconds_left(self) -> float:
        """The time left for this check and everything that it starts."""
        return self.deadline()

    def run_program(
        self,
        program: Path,
        *arguments: str,
        stdin: str = "",
        seconds: float | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> Reply:
        """Run a program under the user's interpreter, with their environment, in the folder of the command.

        `program` is a Python 3.9 file that imports only the standard library and the user's packages. It prints one JSON object
        per line. The reply contains all of them, and `on_line` gets each one as it arrives. Never raises, kills the program in
        time, and may be called from several threads.
        """
        assert self.run_python is not None, "a check that runs programs must declare it in its needs"
        return self.run_python(
            program, list(arguments), stdin, min(self.seconds_left, seconds or self.seconds_left), on_line
        )

    @property
    def on_mac(self) -> bool:
        return self.interpreter is not None and self.interpreter.on_mac

    @property
    def framework(self) -> Framework:
        """The framework that the plan, the command or the script's own imports name."""
        return find_framework(self.plan.trainer if self.plan is not None else None, self.command, self.imports)

    @property
    def settings_framework(self) -> Framework:
        """The framework whose names the settings have. A command of which nothing is known may use any."""
        return self.framework if self.framework.name != COMMAND else default()

    @property
    def named_device(self) -> str | None:
        """The requested device, if it was named; None for `auto`."""
        return self.device if device_kind(self.device) else None

    def trains_on(self, kind: str) -> bool | None:
        """Return whether training will use this kind of device ("mps", "cuda", "cpu"); None if that is unknown."""
        named = device_kind(self.device)
        return named == kind if named else None


@dataclass(frozen=True)
class Case:
    """A recorded context and the status that the check must return for it."""

    description: str
    context: CheckContext
    expected: Status


@dataclass(frozen=True)
class Check:
    kind: Kind
    run: Callable[[CheckContext], Answer]
    needs: tuple[Need, ...] = ()
    """If one of these is missing, the check does not run and reports that."""
    seconds: float = 30.0
    """The time limit."""
    cases: Callable[[], tuple[Case, ...]] = tuple
    """Called only by tests and for documentation."""
    id: str = ""
    """The name of the module in kebab case, set when the check is found. It is stable."""
    page: str = ""
    """The docstring of the module, set when the check is found: what the check does, why, what to do, sources."""


def finding(
    severity: Severity,
    message: str,
    *,
    evidence: Sequence[str] = (),
    remedies: Sequence[str] = (),
    confidence: Confidence = "proven",
) -> Finding:
    """Make a finding. The runner adds the id of the check."""
    return Finding(
        severity=severity, message=message, evidence=list(evidence), remedies=list(remedies), confidence=confidence
    )


fatal = partial(finding, "fatal")
warn = partial(finding, "warn")
note = partial(finding, "note")


def find_missing_need(check: Check, context: CheckContext) -> str | None:
    """Return why the check cannot run in this context, or None if it can."""
    python = context.interpreter
    for need in check.needs:
        if need in ("interpreter", "torch") and (python is None or context.run_python is None):
            return context.no_interpreter or "no Python interpreter was found"
        if need == "torch" and python is not None and python.torch is None:
            return python.no_torch
        if need == "data" and context.data is None:
            return "no dataset is known: specify it with --data DATA.yaml, or check a plan"
        if need == "plan" and context.plan is None:
            return "this check needs a plan: holdfast check PLAN.toml"
        if need == "command" and not context.command and context.plan is None:
            return (
                "this check needs a training command or a plan: holdfast check -- COMMAND, or holdfast check PLAN.toml"
            )
    return None
