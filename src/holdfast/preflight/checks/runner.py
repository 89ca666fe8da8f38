"""Runs checks one after the other, each within its time. None of them can stop the others."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.preflight.checks import all_checks
from holdfast.preflight.checks.check import NotChecked, missing
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
"""For all checks together, where the user does not say."""
MIN_SECONDS = 0.5
GRACE_S = 3.0
"""Beyond its time, for a check that is about to give up by itself."""
EXIT_FATAL = 3


@dataclass(frozen=True)
class Result:
    check: Check
    status: Status
    message: str
    """The check's own line, or why there is none."""
    findings: tuple[Finding, ...] = ()
    """The gravest first."""
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
    """Is told how it goes: `update` from the check's own thread."""

    def on_query(self) -> None:
        """The training's Python is asked what it has."""
        ...

    def begins(self, check: Check) -> None: ...

    def update(self, done: int, total: int | None, what: str) -> None: ...

    def ends(self, result: Result) -> None: ...


class SilentProgress:
    def on_query(self) -> None:
        pass

    def begins(self, check: Check) -> None:
        pass

    def update(self, done: int, total: int | None, what: str) -> None:
        pass

    def ends(self, result: Result) -> None:
        pass


def check(
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    seconds: float = SECONDS,
    watcher: CheckProgress | None = None,
    **asked: Any,
) -> Report:
    """All of it: `asked` is what `build_context` takes (command or plan, device, data)."""
    check_number("--seconds", seconds)
    checks = chosen(only, skip)
    watching = watcher if watcher is not None else SilentProgress()
    began = time.monotonic()
    watching.on_query()
    with helpers.session():  # what a check left behind that was given up ends with it
        context, asker = build_context(**asked, seconds=min(FACTS_SECONDS, seconds))
        try:
            left = seconds - (time.monotonic() - began)
            results = tuple(run_all(checks, context, seconds=left, watcher=watching))
        finally:
            if asker is not None:
                asker.close()
    return Report(context, _without_secrets(results, context), round(time.monotonic() - began, 1))


def _without_secrets(results: tuple[Result, ...], context: CheckContext) -> tuple[Result, ...]:
    """A training that is tried out may print what it was given."""
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


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of these ids or kinds, without those. Raises UsageError for a name that nothing has."""
    known = {check.id for check in all_checks()} | {check.kind for check in all_checks()}
    for name in (*only, *skip):
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            raise UsageError(
                f"There is no check called {name!r}.",
                next_step=f"name one of these: {', '.join(near or sorted(known))}",
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
    watcher: CheckProgress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Each result as it comes."""
    watching = watcher if watcher is not None else SilentProgress()
    end = clock() + seconds
    stopped = ""
    for check in checks:
        left = end - clock()
        why = missing(check, context)
        if why is None and check.kind == "forecast" and stopped:
            why = f"what {stopped} found comes first: mend it, and check again"
        if why is None and left < MIN_SECONDS:
            why = "the time was over before its turn: give more with --seconds"
        if why is not None:
            result = Result(check, "not checked", why)
        else:
            watching.begins(check)
            result = _run(check, context, min(check.seconds, left), watching, clock)
        if result.status == "fatal" and check.kind != "forecast":
            stopped = stopped or check.id
        watching.ends(result)
        yield result


def _run(
    check: Check, context: CheckContext, bound: float, watcher: CheckProgress, clock: Callable[[], float]
) -> Result:
    began = clock()
    come: list[Answer | BaseException] = []
    own = replace(context, deadline=lambda: max(0.0, bound - (clock() - began)), notify=watcher.update)

    def work() -> None:
        try:
            come.append(check.run(own))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told as this check's own failure
            come.append(error)

    thread = threading.Thread(target=work, name=f"check {check.id}", daemon=True)
    thread.start()
    thread.join(bound + GRACE_S)
    took = round(clock() - began, 2)
    return replace(_made_of(check, come[0] if come else None, bound), seconds=took)


def _made_of(check: Check, come: Answer | BaseException | None, bound: float) -> Result:
    if come is None:
        return Result(check, "not checked", f"it had not ended after {bound:.0f} s")
    if isinstance(come, NotChecked):
        return Result(check, "not checked", str(come))
    if isinstance(come, BaseException):
        return Result(check, "not checked", f"the check itself failed ({type(come).__name__}: {come})")
    findings = tuple(sorted(come.findings, key=lambda found: ("fatal", "warn", "note").index(found.severity)))
    gravest = findings[0].severity if findings else "note"
    status: Status = "passed" if gravest == "note" else gravest
    return Result(check, status, come.message, findings)
