"""Recorded dry runs for the cases of checks that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.dry_run.run import DryRunResult
from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.preflight.checks.check import CheckContext

COMMAND = ("python", "train.py")
FALLING = [2.3 * 0.93**n for n in range(24)]
LEVEL = [2.3 + 0.01 * (-1) ** n for n in range(24)]


def recorded_dry_run(
    *lines: Mapping[str, Any],
    losses: Sequence[float] = (2.3, 2.2, 2.1),
    op_check: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> DryRunResult:
    """Return a dry run with these losses and these additional lines."""
    steps = [{"event": "dry-run-step", "phase": "first", "step": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    step_events = [events.Step(at=float(n), step=n, seconds=0.1, loss=loss) for n, loss in enumerate(losses, 1)]
    end = {"event": "dry-run-ended", "why": "all experiments are done", "steps": len(losses), "seconds": 5.0}
    known = {
        "command": COMMAND,
        "lines": (*steps, *lines, *([end] if losses else [])),
        "op_check": tuple(op_check),
        "events": tuple(step_events),
        "python_started": True,
        "code": 0,
        "seconds": 9.0,
        **more,
    }
    return DryRunResult(**known)


def experiments(possible: bool = True, why: str = "", certain: bool = True) -> dict[str, Any]:
    return {"event": "experiments", "possible": possible, "why": why, "input_is_certain": certain}


def curve(losses: Sequence[float], factor: float = 1.0, mode: str = "again", **more: Any) -> dict[str, Any]:
    moved = {"moved": 8, "still": 0, "names": [], "without_gradient": 0, "too_small": 0}
    return {
        "event": "curve", "at": 100.0, "mode": mode, "factor": factor, "rates": [0.01 * factor], "losses": list(losses),
        "moved": moved, "zero_already": False, "given": len(losses), **more,
    }  # fmt: skip


def on_cpu(*lines: Mapping[str, Any], **recorded: Any) -> CheckContext:
    dry_run = recorded_dry_run(*lines, **recorded)
    return linux(command=COMMAND, make_dry_run=lambda _: dry_run)


def on_mps(*lines: Mapping[str, Any], **recorded: Any) -> CheckContext:
    dry_run = recorded_dry_run(*lines, **recorded)
    return mac(command=COMMAND, make_dry_run=lambda _: dry_run)
