"""What the supervisor and the probe have agreed on: the names of variables and files, and the version of it all.

Both sides import this file. Python 3.9 syntax, and no import: every Python process under the supervisor reads it.
"""

from __future__ import annotations

SCHEMA = 1

ATTEMPT_DIR = "HOLDFAST_ATTEMPT_DIR"
"""Where this attempt's files go. Without it the probe stays asleep."""
HEARTBEAT = "HOLDFAST_HEARTBEAT"
LOCK = "HOLDFAST_LOCK"
"""A file that the supervisor holds an exclusive flock on for as long as it lives."""
FIRST_STEP = "HOLDFAST_FIRST_STEP"
"""The step that the resumed checkpoint was saved at: numbering goes on from there."""
OBSERVE_ONLY = "HOLDFAST_OBSERVE_ONLY"
"""Set to 1: nothing in the child may act, so an orphaned child is not stopped and nothing is resumed."""
RESUME = "HOLDFAST_RESUME"
"""How this attempt goes on: from a "snapshot", or from a checkpoint of "ultralytics" where the adapter has to do it."""
PROBE_PATH = "HOLDFAST_PROBE_PATH"
"""The folder that was put on PYTHONPATH, so that the bootstrap can tell its own entry from others."""

SNAPSHOTS = "HOLDFAST_SNAPSHOTS"
"""The folder of this run's snapshots."""
SNAPSHOT_NOW = "HOLDFAST_SNAPSHOT_NOW"
"""A file that the supervisor touches when it wants a snapshot at once."""
MAX_LOST_WORK = "HOLDFAST_MAX_LOST_WORK"
"""Seconds of work that a death may cost, where the user set them."""
MTBF = "HOLDFAST_MTBF"
"""How many seconds an attempt of this run lives, as far as is known."""

ATTEMPT = "HOLDFAST_ATTEMPT"
CHECKPOINT = "HOLDFAST_CHECKPOINT"
FALLBACK = "HOLDFAST_FALLBACK"
"""A checkpoint to go on from should no snapshot be of use."""

ULTRALYTICS = "HOLDFAST_ULTRALYTICS"
"""JSON: what a training of Ultralytics is to do otherwise than its command says, and what Ultralytics has no setting for."""

CHECK = "HOLDFAST_CHECK"
"""JSON: what the first steps are looked at for before a training is worth its hours; the process ends after them. See `op_check`."""

INTERPRETERS_FILE = "interpreters.jsonl"
"""One line for each Python that started under the probe, and for each that imported torch."""


def rank_file(rank: int, pid: int | None = None) -> str:
    """The name of a rank's events; a further process under the same rank adds its pid."""
    return "rank-%d.jsonl" % rank if pid is None else "rank-%d-pid-%d.jsonl" % (rank, pid)


def stack_file(pid: int) -> str:
    return "stacks-%d.txt" % pid
