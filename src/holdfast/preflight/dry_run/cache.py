"""One dry run that all checks share. The first check makes it, within its time limit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.preflight.checks.check import NotChecked
from holdfast.preflight.dry_run.run import DryRunResult, run_in_scratch

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

SECONDS = 150.0
"""For the first check."""
STEPS = 3
CURVE_STEPS = 24
REQUEST = {
    "steps": STEPS,
    "op_check_seconds": 15.0,
    "curve_steps": CURVE_STEPS,
    "curve_seconds": 8.0,
    "seconds": 24.0,
}
"""The request to the probe, see `holdfast_probe.dry_run`."""
CLEANUP_S = 4.0
"""Part of the check's time that is reserved for killing processes and removing the scratch folder."""

_lock = threading.Lock()
_dry_runs: list[tuple[object, DryRunResult]] = []


def get_dry_run(context: CheckContext) -> DryRunResult:
    """Return the dry run. Raises NotChecked with the reason if the training could not be started."""
    result = context.make_dry_run(context) if context.make_dry_run is not None else _get_shared(context)
    if result.start_error:
        raise NotChecked(f"the training could not be started: {result.start_error}")
    return result


def get_dry_run_with_steps(context: CheckContext) -> DryRunResult:
    """Return the dry run. Raises NotChecked if it made no steps."""
    result = get_dry_run(context)
    if not result.steps:
        raise NotChecked(explain_no_steps(result))
    return result


def get_dry_run_with_experiments(context: CheckContext) -> DryRunResult:
    """Return the dry run. Raises NotChecked if it did not repeat a batch."""
    result = get_dry_run_with_steps(context)
    event = result.first("experiments")
    if event is None:
        raise NotChecked(f"it made {result.steps} steps, but none with a repeated batch: {_explain_end(result)}")
    if not event["possible"]:
        raise NotChecked(str(event["why"]))
    if not result.select("curve"):
        raise NotChecked(f"one batch was repeated, but no experiment was completed: {_explain_end(result)}")
    return result


def _get_shared(context: CheckContext) -> DryRunResult:
    key = (context.command, context.cwd, context.plan, context.device)
    most = STEPS + 3 * CURVE_STEPS
    with _lock:
        if not _dry_runs or _dry_runs[0][0] != key:
            result = run_in_scratch(
                context,
                {"dry_run": REQUEST},
                max(1.0, context.seconds_left - CLEANUP_S),
                device=context.named_device,
                notify=lambda done: context.notify(min(done, most), most, "steps"),
            )
            _dry_runs[:] = [(key, result)]
        return _dry_runs[0][1]


def clear() -> None:
    """Make the next check run it again."""
    with _lock:
        _dry_runs.clear()


def explain_no_steps(result: DryRunResult) -> str:
    """Return why no step was observed."""
    if result.first("first-loss") is not None:
        return "gradients were computed, but no torch optimizer made a step"
    if result.steps_elsewhere:
        return "the training makes its steps in a child process, which a dry run does not control"
    if result.code is None:
        return f"the training made no step in {result.seconds:.0f} s: increase --seconds"
    if result.blocked_path:
        return f"the training stopped before its first step, {explain_blocked_write(result)}"
    if not result.python_started:
        return "the command started no Python process that can be observed"
    last = f" ({result.last_lines[-1][:200]})" if result.last_lines else ""
    return f"the training stopped before its first step, with exit code {result.code}{last}"


def explain_blocked_write(result: DryRunResult) -> str:
    """Return why the training may have stopped, if a write was blocked."""
    return (
        f"and a write outside its folder was blocked: {result.blocked_path}. The training is not judged for this."
        " Let it write below its folder, or check with --no-confine"
    )


def _explain_end(result: DryRunResult) -> str:
    if result.code is None:
        return f"the time was over after {result.seconds:.0f} s"
    if result.ended is not None and not result.ended_alone:
        return str(result.ended["why"])
    last = f" ({result.last_lines[-1][:200]})" if result.last_lines else ""
    return f"the training exited with code {result.code}{last}"
