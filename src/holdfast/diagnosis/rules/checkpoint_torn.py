"""A checkpoint file is incomplete or corrupt.

**What it means.** The file cannot be loaded (`PytorchStreamReader failed reading zip archive: failed finding central
directory`), because a kill, a full disk or a crash interrupted the write. `torch.save` writes directly to the final
file, so the previous checkpoint of that name is lost as well.

**Why it happens.** In most cases, the process was killed while it was saving. The error also occurs if a download
was interrupted, or if the file was never a checkpoint: `invalid load key, 'v'` means that the file is a Git LFS pointer
(`version https://...`), and `invalid load key, '<'` means that it is an HTML page.

**What to do.** Holdfast skips truncated files and resumes from the newest complete one. A copy of the files saved by
each attempt is in `attempts/<n>/saved/` in the run folder. To recover a file of your own, save or download it again. To
prevent truncated files, write to a temporary file and then call `os.replace()`.

**Severity.** The severity is `fatal` if the process ended because it could not load the file. It is `warn` if Holdfast
finds a truncated file among the files saved by an attempt, or skips one of its own snapshots because it is truncated.

Sources: torch's `serialization.py` and `inline_container.cc`; Ultralytics writes `last.pt` in place.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import raises

_PATTERNS = (
    r"PytorchStreamReader failed ",
    r"failed finding central directory",
    r"unexpected EOF, expected \d+ more bytes\. The file might be corrupted",
    r"UnpicklingError: (?:invalid load key|pickle data was truncated)",
    r"Error while deserializing header: (?:\w*Header\w*|MetadataIncompleteBuffer)",
    r"^(?:zipfile\.)?BadZipFile: ",
)
_EMPTY_FILE = r"^EOFError(?:: Ran out of input)?$"
_LOADING = re.compile(r"torch/serialization\.py\"|\btorch\.load\(")
_KEY = re.compile(r"invalid load key, '(.*?)'")
_NEVER_A_CHECKPOINT = {"v": "a Git LFS pointer", "<": "an HTML page"}


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    line = match_exception(failure, *_PATTERNS) if failure is not None else None
    if failure is not None and line is None and any(_LOADING.search(text) for text in exception_words(failure)):
        line = match_exception(failure, _EMPTY_FILE)
    if line is not None:
        return _report_unloadable(state, line)
    if state.attempt.snapshots.corrupt:
        return _report_skipped_snapshot(state.attempt.snapshots.corrupt[-1])
    backed_up = state.attempt.backed_up
    torn = [file for file in backed_up.files if file.torn] if backed_up is not None else []
    return _report_truncated(torn) if torn else None


def _report_unloadable(state: RunState, line: str) -> Finding:
    key = _KEY.search(line)
    other = _NEVER_A_CHECKPOINT.get(key[1]) if key else None
    resume = state.attempt.started.resume
    checkpoint = resume.checkpoint if resume is not None else None
    what = f"is {other}, not a checkpoint" if other else "is truncated, because its write or download was interrupted"
    return Finding(
        severity="fatal",
        message=f"Training failed {describe_position(state.attempt)}: the file it tried to load {what}.",
        evidence=[line, *([f"this attempt was supposed to resume from {checkpoint}"] if checkpoint else [])],
        remedies=[
            *(["git lfs pull"] if other == "a Git LFS pointer" else []),
            "resume from an older file: the files that each attempt saved are under attempts/<n>/saved/ in the run folder",
            "if the file was downloaded, delete it and download it again",
            "write to a temporary file and then call os.replace(), so that a kill cannot truncate the file",
        ],
    )


def _report_truncated(files: list[events.BackedUpFile]) -> Finding:
    names = ", ".join(file.path for file in files[:3])
    return Finding(
        severity="warn",
        message=f"{names} is truncated and cannot be loaded: writing it was interrupted."
        if len(files) == 1
        else f"{len(files)} files are truncated and cannot be loaded, because writing them was interrupted: {names}.",
        evidence=[f"{file.path}: {file.bytes} bytes, step {file.step}, truncated" for file in files[:3]],
        remedies=["resume from an older file; Holdfast skips truncated files automatically"],
    )


def _report_skipped_snapshot(snapshot: events.SnapshotCorrupt) -> Finding:
    return Finding(
        severity="warn",
        message=f"The snapshot {snapshot.path} is incomplete and was skipped: {snapshot.why}.",
        evidence=[f"{snapshot.path}: {snapshot.why}"],
        remedies=[
            "no action is needed: the run resumes from the previous snapshot; check the disk if it happens again"
        ],
    )


def _backed_up(*, torn: bool) -> list[events.AnyEvent]:
    file = events.BackedUpFile(
        path="/home/ann/last.pt", kept="/run/attempts/1/saved/last.pt", bytes=4096, step=10, torn=torn
    )
    return [events.CheckpointsBackedUp(at=99.5, attempt=1, files=[file])]


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded, events.SnapshotCorrupt, events.CheckpointsBackedUp),
    judge=judge,
    cause=55,
    cases=lambda: [
        Case(
            "an incomplete snapshot was skipped",
            "warn",
            trains(),
            events.SnapshotCorrupt(at=1.0, path="snapshots/7", why="its end is missing"),
        ),
        Case(
            "a zip archive without its central directory",
            "fatal",
            raises(
                "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
                last_step=0,
            ),
        ),
        Case(
            "the old format, truncated",
            "fatal",
            raises("RuntimeError: unexpected EOF, expected 3121 more bytes. The file might be corrupted."),
        ),
        Case("a Git LFS pointer", "fatal", raises("_pickle.UnpicklingError: invalid load key, 'v'.", last_step=0)),
        Case(
            "an empty file",
            "fatal",
            raises(
                "EOFError: Ran out of input",
                through=('"/venv/lib/python3.11/site-packages/torch/serialization.py", line 1033, in load',),
            ),
        ),
        Case("killed while saving", "warn", trains(), losses(1.0), ended(signal="SIGKILL"), _backed_up(torn=True)),
        Case("killed, and the file is complete", None, ended(signal="SIGKILL"), _backed_up(torn=False)),
        Case(
            "a worker that could not be spawned",
            None,
            raises(
                "EOFError: Ran out of input",
                through=('"/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main',),
            ),
        ),
        Case(
            "the script itself skipped a corrupt file",
            None,
            ended(0, words=["PytorchStreamReader failed reading zip archive: trying the backup"]),
        ),
    ],
)
