"""One dry run for all checks that ask about it: the first of them holds it, within its time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.preflight.checks.check import NotChecked
from holdfast.preflight.dry_run.run import DryRunResult, run_in_scratch

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

SECONDS = 150.0
"""For the check that comes first."""
STEPS = 3
CURVE_STEPS = 24
ASKED = {
    "steps": STEPS,
    "op_check_seconds": 15.0,
    "curve_steps": CURVE_STEPS,
    "curve_seconds": 8.0,
    "seconds": 24.0,
}
"""See `holdfast_probe.dry_run`."""
CLEANUP_S = 4.0
"""Of the check's time: processes are ended, the scratch is removed."""

_lock = threading.Lock()
_held: list[tuple[object, DryRunResult]] = []


def get_dry_run(context: CheckContext) -> DryRunResult:
    """Raises NotChecked where there is nothing to be told of, with the reason."""
    result = context.make_dry_run(context) if context.make_dry_run is not None else _shared(context)
    if result.start_error:
        raise NotChecked(f"it could not be started: {result.start_error}")
    return result


def get_dry_run_with_steps(context: CheckContext) -> DryRunResult:
    """One that made steps. Raises NotChecked."""
    result = get_dry_run(context)
    if not result.steps:
        raise NotChecked(explain_no_steps(result))
    return result


def get_dry_run_with_experiments(context: CheckContext) -> DryRunResult:
    """One in which a batch was given again and again. Raises NotChecked."""
    result = get_dry_run_with_steps(context)
    told = result.one("experiments")
    if told is None:
        raise NotChecked(f"it made {result.steps} steps, and none with one batch again: {_end_of(result)}")
    if not told["possible"]:
        raise NotChecked(str(told["why"]))
    if not result.of("curve"):
        raise NotChecked(f"one batch was given again, and no experiment came to its end: {_end_of(result)}")
    return result


def _shared(context: CheckContext) -> DryRunResult:
    key = (context.command, context.cwd, context.plan, context.device)
    most = STEPS + 3 * CURVE_STEPS
    with _lock:
        if not _held or _held[0][0] != key:
            result = run_in_scratch(
                context,
                {"dry_run": ASKED},
                max(1.0, context.seconds_left - CLEANUP_S),
                device=context.device if context.device not in (None, "auto") else None,
                notify=lambda done: context.notify(min(done, most), most, "steps"),
            )
            _held[:] = [(key, result)]
        return _held[0][1]


def forget() -> None:
    """The next check holds another."""
    with _lock:
        _held.clear()


def explain_no_steps(result: DryRunResult) -> str:
    """Why no step was seen."""
    if result.one("first-loss") is not None:
        return "gradients were computed, and no optimizer of torch's made a step"
    if result.steps_elsewhere:
        return "its steps are made in a process that it starts for them, which a dry run does not lead"
    if result.code is None:
        return f"it made no step in {result.seconds:.0f} s: give more with --seconds"
    if result.blocked_path:
        return f"it ended before its first step, {explain_blocked_write(result)}"
    if not result.python_started:
        return "no Python was started by it that could be watched"
    last = f" ({result.last_lines[-1][:200]})" if result.last_lines else ""
    return f"it ended before its first step, with exit code {result.code}{last}"


def explain_blocked_write(result: DryRunResult) -> str:
    """Why it may have ended, where it was refused to write something."""
    return (
        f"and it was kept from writing outside of its folder: {result.blocked_path}; nothing is said about it."
        " Have it write below its folder, or check with --no-confine"
    )


def _end_of(result: DryRunResult) -> str:
    if result.code is None:
        return f"its time was over after {result.seconds:.0f} s"
    if result.ended is not None and not result.ended_alone:
        return str(result.ended["why"])
    last = f" ({result.last_lines[-1][:200]})" if result.last_lines else ""
    return f"it ended by itself, with exit code {result.code}{last}"
