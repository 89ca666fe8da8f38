"""A checkpoint file is not whole.

**What it means.** The file was cut off while it was written, by a kill, a full disk or a crash, and cannot be loaded
(`PytorchStreamReader failed reading zip archive: failed finding central directory`). `torch.save` writes straight into the
final file, so the one before it is gone as well.

**Why it happens.** A process that is killed while it saves. Also a download that was broken off, and a file that never was a
checkpoint: `invalid load key, 'v'` is Git LFS' pointer (`version https://...`), `'<'` a web page.

**What to do.** Holdfast passes over torn files and goes on from the newest whole one; what an attempt saved is kept in its
folder under `saved/`. For a file of your own: save or download it again; save to another name and rename.

**A warning** is made where Holdfast finds a torn file among those that an attempt left, or passes over a torn snapshot of its own.

Sources: torch's `serialization.py` and `inline_container.cc`; Ultralytics writes `last.pt` in place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = (
    r"PytorchStreamReader failed ",
    r"failed finding central directory",
    r"unexpected EOF, expected \d+ more bytes\. The file might be corrupted",
    r"UnpicklingError: (?:invalid load key|pickle data was truncated)",
    r"Error while deserializing header: (?:\w*Header\w*|MetadataIncompleteBuffer)",
    r"^(?:zipfile\.)?BadZipFile: ",
)
_RAN_OUT = r"^EOFError(?:: Ran out of input)?$"
_LOADING = re.compile(r"torch/serialization\.py\"|\btorch\.load\(")
_KEY = re.compile(r"invalid load key, '(.*?)'")
_NEVER_A_CHECKPOINT = {"v": "a pointer of Git LFS", "<": "a web page"}


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if gone is not None and words is None and any(_LOADING.search(line) for line in exception_words(gone)):
        words = match_exception(gone, _RAN_OUT)
    if words is not None:
        return _not_loaded(state, words)
    if state.attempt.snapshots.corrupt:
        return _passed_over(state.attempt.snapshots.corrupt[-1])
    backed_up = state.attempt.backed_up
    torn = [file for file in backed_up.files if file.torn] if backed_up is not None else []
    return _left_behind(torn) if torn else None


def _not_loaded(state: RunState, words: str) -> Finding:
    key = _KEY.search(words)
    other = _NEVER_A_CHECKPOINT.get(key[1]) if key else None
    resume = state.attempt.started.resume
    ours = resume.checkpoint if resume is not None else None
    what = f"is {other}, not a checkpoint" if other else "is torn: it was cut off while it was written or downloaded"
    return Finding(
        rule="checkpoint-torn",
        severity="fatal",
        message=f"A file that was to be loaded {what}; it ended {describe_position(state.attempt)}.",
        evidence=[words, *([f"it was to go on from {ours}"] if ours else [])],
        remedies=[
            *(["git lfs pull"] if other == "a pointer of Git LFS" else []),
            "go on from an older file: what each attempt saved is under attempts/<n>/saved/ in the run's folder",
            "if it was downloaded: delete it and download it again",
            "write to another name and rename, so that a kill cannot tear it",
        ],
    )


def _left_behind(torn: list[events.BackedUpFile]) -> Finding:
    names = ", ".join(file.path for file in torn[:3])
    return Finding(
        rule="checkpoint-torn",
        severity="warn",
        message=f"{names} was cut off while it was written, and cannot be loaded."
        if len(torn) == 1
        else f"{len(torn)} files were cut off while they were written, and cannot be loaded: {names}.",
        evidence=[f"{file.path}: {file.bytes} bytes, step {file.step}, not whole" for file in torn[:3]],
        remedies=["go on from an older file; Holdfast passes over torn ones by itself"],
    )


def _passed_over(torn: events.SnapshotCorrupt) -> Finding:
    return Finding(
        rule="checkpoint-torn",
        severity="warn",
        message=f"The snapshot {torn.path} is not whole and was passed over: {torn.why}.",
        evidence=[f"{torn.path}: {torn.why}"],
        remedies=["nothing: the training goes on from the one before; look after the disk if it comes again"],
    )


def _backed_up(*, torn: bool) -> list[events.AnyEvent]:
    file = events.BackedUpFile(
        path="/home/ann/last.pt", kept="/run/attempts/1/saved/last.pt", bytes=4096, step=10, torn=torn
    )
    return [events.CheckpointsBackedUp(at=99.5, attempt=1, files=[file])]


RULE = Rule(
    id="checkpoint-torn",
    kind="exit",
    on=(events.AttemptEnded, events.SnapshotCorrupt, events.CheckpointsBackedUp),
    judge=judge,
    page=__doc__ or "",
    cause=55,
    cases=[
        Case(
            "a snapshot that was passed over",
            [*started(), *trains(), events.SnapshotCorrupt(at=1.0, path="snapshots/7", why="its end is missing")],
            "warn",
        ),
        Case(
            "an archive without its directory",
            [
                *started(),
                *raises(
                    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
                    last_step=0,
                ),
            ],
            "fatal",
        ),
        Case(
            "the old format, cut off",
            [
                *started(),
                *raises("RuntimeError: unexpected EOF, expected 3121 more bytes. The file might be corrupted."),
            ],
            "fatal",
        ),
        Case(
            "a pointer of Git LFS",
            [*started(), *raises("_pickle.UnpicklingError: invalid load key, 'v'.", last_step=0)],
            "fatal",
        ),
        Case(
            "an empty file",
            [
                *started(),
                *raises(
                    "EOFError: Ran out of input",
                    through=('"/venv/lib/python3.11/site-packages/torch/serialization.py", line 1033, in load',),
                ),
            ],
            "fatal",
        ),
        Case(
            "killed while it saved",
            [*started(), *trains(), *losses(1.0), *ended(signal="SIGKILL"), *_backed_up(torn=True)],
            "warn",
        ),
        Case("killed, and the file is whole", [*started(), *ended(signal="SIGKILL"), *_backed_up(torn=False)], None),
        Case(
            "a worker that could not be spawned",
            [
                *started(),
                *raises(
                    "EOFError: Ran out of input",
                    through=('"/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main',),
                ),
            ],
            None,
        ),
        Case(
            "a torn file was passed over by the training itself",
            [*started(), *ended(0, words=["PytorchStreamReader failed reading zip archive: trying the backup"])],
            None,
        ),
    ],
)
