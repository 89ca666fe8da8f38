"""The environment of an attempt's process: the user's own, with the probe on its Python path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import holdfast.probe
from holdfast.frameworks import COMMAND
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.python_command import python_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.schema.events import Resume
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder

PROBE_FOLDER = Path(holdfast.probe.__file__).resolve().parent


def environment(
    run: RunFolder,
    plan: Plan,
    attempt: int,
    resume: Resume | None,
    *,
    mtbf_s: float | None,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    variables = {
        protocol.ATTEMPT: str(attempt),
        protocol.ATTEMPT_DIR: str(run.attempt(attempt).path),
        protocol.HEARTBEAT: str(run.heartbeat),
        protocol.LOCK: str(run.lock),
        protocol.PROBE_PATH: str(PROBE_FOLDER),
        protocol.SNAPSHOTS: str(run.snapshots),
        protocol.SNAPSHOT_NOW: str(run.snapshot_now),
    }
    if mtbf_s is not None:
        variables[protocol.MTBF] = f"{mtbf_s:.0f}"
    if plan.max_lost_work_s is not None:
        variables[protocol.MAX_LOST_WORK] = str(plan.max_lost_work_s)
    if plan.observe_only:
        variables[protocol.OBSERVE_ONLY] = "1"
    if resume is not None and resume.checkpoint is not None:
        variables[protocol.CHECKPOINT] = resume.checkpoint
        variables[protocol.FIRST_STEP] = str(resume.step)
        variables[protocol.RESUME] = resume.how
        if resume.fallback is not None:
            variables[protocol.FALLBACK] = resume.fallback
    overrides = overrides_for(plan)
    if overrides and not plan.observe_only:
        variables[protocol.OVERRIDES] = json.dumps(overrides)
    # A supervisor inside a supervised run must not pass on the variables or the path of the outer supervisor.
    inherited = {name: value for name, value in base.items() if not name.startswith("HOLDFAST_")}
    path = python_path({**base, **plan.environment}, str(PROBE_FOLDER))
    return {**inherited, **plan.environment, **variables, **path}


def overrides_for(plan: Plan) -> dict[str, Any]:
    """Return how a training must deviate from its command. Values that would not change anything are left out."""
    values = msgspec.to_builtins(plan)
    # A command that Holdfast builds already contains the plan's settings.
    own = plan.settings if plan.trainer == COMMAND else {}
    settings = {**own, **plan.overrides}
    if settings.get("device") in ("auto", ""):
        settings.pop("device", None)
    parts = {
        "settings": settings,
        "validation": {name: value for name, value in values.get("validation", {}).items() if name != "on_cpu"},
        "clear_cache": values.get("clear_cache"),
        "assigner": values.get("assigner"),
    }
    return {name: part for name, part in parts.items() if part}
