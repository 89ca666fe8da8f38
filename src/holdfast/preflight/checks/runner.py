"""Runs the checks one after the other, each within its time limit. A failing check does not stop the others."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.preflight.checks import all_checks
from holdfast.preflight.checks.check import NotChecked, find_missing_need
from holdfast.preflight.checks.context import FACTS_SECONDS, build_context
from holdfast.process.helper_processes import helpers
from holdfast.schema.errors import UsageError
from holdfast.schema.plan import check_number
from holdfast.storage.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.preflight.checks.check import Answer, Check, CheckContext, Status
    from holdfast.schema.verdicts import Finding

SECONDS = 300.0
"""The default time limit of all checks together."""
MIN_SECONDS = 0.5
GRACE_S = 3.0
"""Extra time for a check that is about to time out itself."""
EXIT_FATAL = 3


@dataclass(frozen=True)
class Result:
    check: Check
    status: Status
    message: str
    """The check's answer, or why there is none."""
    findings: tuple[Finding, ...] = ()
    """The most severe first."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    context: CheckContext
    results: tuple[Result, ...]
    seconds: float

    @property
    def exit_status(self) -> int:
        return EXIT_FATAL if any(result.status == "fatal" for result in self.results) else 0


class CheckProgress(Protocol):
    """Callbacks for progress. `update` is called from the check's own thread."""

    def on_query(self) -> None:
        """Called before the Python interpreter of the training script is queried."""
        ...

    def on_check_start(self, check: Check) -> None: ...

    def update(self, done: int, total: int | None, what: str) -> None: ...

    def on_check_end(self, result: Result) -> None: ...


class SilentProgress:
    def on_query(self) -> None:
        pass

    def on_check_start(self, check: Check) -> None:
        pass

    def update(self, done: int, total: int | None, what: str) -> None:
        pass

    def on_check_end(self, result: Result) -> None:
        pass


def check(
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    seconds: float = SECONDS,
    progress: CheckProgress | None = None,
    **options: Any,
) -> Report:
    """Build the context, run the selected checks and return the report. `build_context` takes the `options` (command or plan, device, data)."""
    check_number("--seconds", seconds)
    checks = select_checks(only, skip)
    progress = progress if progress is not None else SilentProgress()
    began = time.monotonic()
    progress.on_query()
    with helpers.session():  # kills what a check left behind when it timed out
        context, client = build_context(**options, seconds=min(FACTS_SECONDS, seconds))
        try:
            left = seconds - (time.monotonic() - began)
            results = tuple(run_all(checks, context, seconds=left, progress=progress))
        finally:
            if client is not None:
                client.close()
    return Report(context, _redact(results, context), round(time.monotonic() - began, 1))


def _redact(results: tuple[Result, ...], context: CheckContext) -> tuple[Result, ...]:
    """Remove secrets from the results: a script in a dry run may print its arguments."""
    redactor = redactor_for(context.plan)
    redactor.command(context.command)
    return tuple(
        replace(
            result,
            message=redactor.text(result.message),
            findings=tuple(redactor.event(found) for found in result.findings),
        )
        for result in results
    )


def select_checks(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Check, ...]:
    """Return the checks with the ids or kinds in `only`, without those in `skip`. Raises UsageError for an unknown name."""
    known = {check.id for check in all_checks()} | {check.kind for check in all_checks()}
    for name in (*only, *skip):
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            raise UsageError(
                f"There is no check called {name!r}.",
                next_step=f"use one of these names: {', '.join(near or sorted(known))}",
            )
    return tuple(
        check
        for check in all_checks()
        if (not only or {check.id, check.kind} & set(only)) and not {check.id, check.kind} & set(skip)
    )


def run_all(
    checks: Sequence[Check],
    context: CheckContext,
    *,
    seconds: float = SECONDS,
    progress: CheckProgress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Run the checks and yield each result when it is ready."""
    progress = progress if progress is not None else SilentProgress()
    end = clock() + seconds
    stopped = ""
    for check in checks:
        left = end - clock()
        why = find_missing_need(check, context)
        if why is None and check.kind == "forecast" and stopped:
            why = f"{stopped} found a fatal problem: fix that first, and check again"
        if why is None and left < MIN_SECONDS:
            why = "there was no time left for this check: increase --seconds"
        if why is not None:
            result = Result(check, "not checked", why)
        else:
            progress.on_check_start(check)
            result = _run(check, context, min(check.seconds, left), progress, clock)
        if result.status == "fatal" and check.kind != "forecast":
            stopped = stopped or check.id
        progress.on_check_end(result)
        yield result


def _run(
    check: Check, context: CheckContext, limit: float, progress: CheckProgress, clock: Callable[[], float]
) -> Result:
    began = clock()
    outcomes: list[Answer | BaseException] = []
    own = replace(context, deadline=lambda: max(0.0, limit - (clock() - began)), notify=progress.update)

    def work() -> None:
        try:
            outcomes.append(check.run(own))
        except BaseException as error:  # noqa: BLE001 - any exception is reported as a failure of this check
            outcomes.append(error)

    thread = threading.Thread(target=work, name=f"check {check.id}", daemon=True)
    thread.start()
    thread.join(limit + GRACE_S)
    took = round(clock() - began, 2)
    return replace(_make_result(check, outcomes[0] if outcomes else None, limit), seconds=took)


def _make_result(check: Check, outcome: Answer | BaseException | None, limit: float) -> Result:
    if outcome is None:
        return Result(check, "not checked", f"the check did not finish within {limit:.0f} s")
    if isinstance(outcome, NotChecked):
        return Result(check, "not checked", str(outcome))
    if isinstance(outcome, BaseException):
        return Result(check, "not checked", f"the check itself failed ({type(outcome).__name__}: {outcome})")
    named = (msgspec.structs.replace(found, rule=check.id) for found in outcome.findings)
    findings = tuple(sorted(named, key=lambda found: ("fatal", "warn", "note").index(found.severity)))
    worst = findings[0].severity if findings else "note"
    status: Status = "passed" if worst == "note" else worst
    return Result(check, status, outcome.message, findings)
