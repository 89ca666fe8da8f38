"""How the next attempt resumes: from which checkpoint and by which means, or from the start, and why."""

from __future__ import annotations

import glob
import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.checkpoints import is_plain_loop
from holdfast.frameworks import by_name
from holdfast.schema.events import Resume
from holdfast.storage.integrity import is_intact
from holdfast.storage.safe_files import exists

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.events import Saved, Snapshot
    from holdfast.schema.plan import Plan

UNKNOWN_COMMAND = (
    "Holdfast does not know how this command resumes from a checkpoint; "
    """specify it with --checkpoint 'GLOB' --resume-with "--resume {checkpoint}" """
).strip()
PLAIN_LOOP = f"{UNKNOWN_COMMAND}; or wrap the loop in holdfast.guard to resume at the exact batch (docs/guard.md)"
NO_STEP = "it had not completed a step"
MAX_MATCHES = 10_000
"""Files that a --checkpoint pattern may match."""


def find_resume_point(state: RunState, plan: Plan, before: int | None = None) -> Resume:
    """Return the newest intact state to resume from; with `before`, the newest that was saved before that step."""
    if plan.observe_only:
        return Resume(how="start over", why="with --observe-only, Holdfast changes nothing")
    found = _choose(state, plan, before)
    if before is not None and found.checkpoint is None:
        return Resume(
            how="start over",
            why=f"no usable checkpoint was saved before step {before}, where the training state became corrupt",
        )
    return found


def _choose(state: RunState, plan: Plan, before: int | None) -> Resume:
    snapshot = _find_newest_snapshot(state, before)
    own = by_name(state.framework).find_resume_point(state, before)
    if snapshot is not None:
        fallback = own.checkpoint if own is not None else None
        return Resume(how="snapshot", checkpoint=snapshot.path, step=snapshot.step, fallback=fallback)
    if plan.checkpoint is not None:
        return _from_glob(state, plan, before)
    if own is not None:
        return own
    if state.attempt.torch is not None and not any(attempt.steps for attempt in state.attempts):
        return Resume(how="start over", why=NO_STEP)
    return Resume(how="start over", why=PLAIN_LOOP if is_plain_loop(state) else UNKNOWN_COMMAND)


def command_for(plan: Plan, resume: Resume | None) -> list[str]:
    """Return the command of an attempt: the user's own, plus the arguments that make it resume."""
    if resume is None or resume.how != "command" or resume.checkpoint is None or plan.resume_with is None:
        return list(plan.command)
    words = shlex.split(plan.resume_with)  # cannot raise: a plan that cannot be split is rejected earlier
    return [*plan.command, *(word.replace("{checkpoint}", resume.checkpoint) for word in words)]


def saved_files(state: RunState, plan: Plan) -> list[tuple[Path, int]]:
    """Return the files that the newest attempt left on disk, with the step at which each was saved."""
    attempt = state.attempt
    found = _find_saved(attempt, plan)
    if plan.checkpoint is not None:
        for path in _match_checkpoints(plan):
            if _modified_at(path) >= attempt.started.at:
                found.setdefault(path, attempt.last_step)
    return list(found.items())


def _find_saved(attempt: AttemptState, plan: Plan) -> dict[Path, int]:
    """Return where the files that the probe saw being saved are now. Many programs save under a temporary name and rename
    the file; rotated files are gone.
    """
    found: dict[Path, int] = {}
    for name, saved in attempt.saves.by_path.items():
        path = _resolve(Path(plan.cwd) / name)
        if path is None:
            continue
        if not exists(path):
            renamed = _find_renamed(path, saved, attempt.started.at)
            if renamed is None:
                continue
            path = renamed
        found[path] = max(saved.step, found.get(path, 0))
    return found


def _find_renamed(path: Path, saved: Saved, since: float) -> Path | None:
    """Return the newest file of this attempt in the same folder with the size of the saved file."""
    try:
        candidates = [file for file in path.parent.iterdir() if file.is_file() and file.stat().st_size == saved.bytes]
    except (OSError, ValueError):
        return None
    return max((file for file in candidates if _modified_at(file) >= since), key=_modified_at, default=None)


def _find_newest_snapshot(state: RunState, before: int | None) -> Snapshot | None:
    for attempt in reversed(state.attempts):
        for snapshot in reversed(attempt.snapshots.known):
            if (before is None or snapshot.step < before) and exists(Path(snapshot.path)):
                return snapshot
    return None


def _from_glob(state: RunState, plan: Plan, before: int | None) -> Resume:
    since = state.attempts[0].started.at
    # A file from before this run belongs to another run: resuming from it would mix the two.
    files = [path for path in _match_checkpoints(plan) if _modified_at(path) >= since]
    files.sort(key=_modified_at, reverse=True)
    for path in files:
        if is_intact(path) and (before is None or 0 < _find_step(state, plan, path) < before):
            how = "command" if plan.resume_with else "environment"
            return Resume(
                how=how, checkpoint=str(path), step=_find_step(state, plan, path), why=_describe_skipped(files, path)
            )
    why = "every checkpoint is incomplete or corrupt" if files else f"no file of this run matches {plan.checkpoint}"
    return Resume(how="start over", why=why)


def _match_checkpoints(plan: Plan) -> list[Path]:
    pattern = str(Path(plan.cwd) / (plan.checkpoint or ""))
    try:
        # Not Path.glob: it does not accept absolute patterns, which users pass.
        found = list(itertools.islice(glob.iglob(pattern, recursive=True), MAX_MATCHES))  # noqa: PTH207
    except (OSError, ValueError, RecursionError):
        return []
    return [path for name in found if (path := _resolve(Path(name))) is not None]


def _find_step(state: RunState, plan: Plan, path: Path) -> int:
    """Return the step at which a file was saved, or 0 if the probe did not see it."""
    return next((saved[path] for a in reversed(state.attempts) if path in (saved := _find_saved(a, plan))), 0)


def _describe_skipped(files: list[Path], chosen: Path) -> str:
    skipped = files[: files.index(chosen)]
    return (
        f"skipped checkpoints that cannot be used to resume: {len(skipped)} (newest: {skipped[0]})" if skipped else ""
    )


def _resolve(path: Path) -> Path | None:
    """Return the resolved path, or None if it is invalid: a link to itself, a name that no file can have."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return 0.0
