"""What `summary.json` says of a run's end, believed only where it is of the record as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.schema.verdicts import Outcome
from holdfast.storage.safe_files import read_bytes

if TYPE_CHECKING:
    from holdfast.storage.folder import RunFolder

SUMMARY_SCHEMA = 1
MAX_SUMMARY_BYTES = 16 << 20


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    run: str
    dir: str
    verdict: str
    journal_bytes: int
    """How long the journal was when this was written: a longer one goes on behind it."""


def journal_bytes(run: RunFolder) -> int:
    """How long the journal is now; 0 where there is none."""
    try:
        return run.journal.stat().st_size
    except OSError:
        return 0


def recorded_verdict(run: RunFolder) -> Outcome | None:
    """The verdict in the summary; None where there is none, or where it is of another folder or of a shorter journal."""
    try:
        head = msgspec.json.decode(read_bytes(run.summary, MAX_SUMMARY_BYTES, follow_links=False), type=_Head)
        current = (SUMMARY_SCHEMA, run.name, str(run.path.resolve()), journal_bytes(run))
        agrees = (head.schema, head.run, head.dir, head.journal_bytes) == current
        return Outcome(head.verdict) if agrees else None
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
