"""Reads the verdict in `summary.json`, and trusts it only if it matches the current journal."""

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
    """Size of the journal when the summary was written. If the journal is larger now, the run was continued."""


def journal_bytes(run: RunFolder) -> int:
    """Return the current size of the journal; 0 if there is none."""
    try:
        return run.journal.stat().st_size
    except OSError:
        return 0


def recorded_verdict(run: RunFolder) -> Outcome | None:
    """Return the verdict in the summary; None if there is none, or if it belongs to another folder or a shorter
    journal.
    """
    try:
        head = msgspec.json.decode(read_bytes(run.summary, MAX_SUMMARY_BYTES, follow_links=False), type=_Head)
        current = (SUMMARY_SCHEMA, run.name, str(run.path.resolve()), journal_bytes(run))
        is_current = (head.schema, head.run, head.dir, head.journal_bytes) == current
        return Outcome(head.verdict) if is_current else None
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
