"""The protocol between the supervisor and the probe: names of environment variables and files, and the schema version.

Both sides import this file. It uses Python 3.9 syntax and imports nothing, because every Python process under the
supervisor loads it.
"""

from __future__ import annotations

SCHEMA = 1

ATTEMPT_DIR = "HOLDFAST_ATTEMPT_DIR"
"""The folder for this attempt's files. If it is not set, the probe does nothing."""
HEARTBEAT = "HOLDFAST_HEARTBEAT"
LOCK = "HOLDFAST_LOCK"
"""A file that the supervisor keeps an exclusive flock on while it runs."""
FIRST_STEP = "HOLDFAST_FIRST_STEP"
"""The step at which the resumed checkpoint was saved: numbering continues from there."""
OBSERVE_ONLY = "HOLDFAST_OBSERVE_ONLY"
"""If 1, the probe only observes: it does not stop an orphaned training and does not resume anything."""
RESUME = "HOLDFAST_RESUME"
"""How this attempt resumes: from a "snapshot", or from a checkpoint that the part for its "framework" has to load."""
PROBE_PATH = "HOLDFAST_PROBE_PATH"
"""The folder that was put on PYTHONPATH, so that the bootstrap can tell its own entry from the others."""

SNAPSHOTS = "HOLDFAST_SNAPSHOTS"
"""The folder of this run's snapshots."""
SNAPSHOT_NOW = "HOLDFAST_SNAPSHOT_NOW"
"""A file that the supervisor touches to request a snapshot immediately."""
MAX_LOST_WORK = "HOLDFAST_MAX_LOST_WORK"
"""Seconds of work that a crash may cost, if the user set a limit."""
MTBF = "HOLDFAST_MTBF"
"""How many seconds an attempt of this run lasts until it fails, as far as is known."""

ATTEMPT = "HOLDFAST_ATTEMPT"
CHECKPOINT = "HOLDFAST_CHECKPOINT"
FALLBACK = "HOLDFAST_FALLBACK"
"""The checkpoint to resume from if no snapshot is usable."""

OVERRIDES = "HOLDFAST_OVERRIDES"
"""JSON: settings of the framework that override those of the command, and options that it has no setting for."""

CHECK = "HOLDFAST_CHECK"
"""JSON: what to check in the first steps of a training before it runs for hours. The process exits after these steps.
See `op_check`."""

INTERPRETERS_FILE = "interpreters.jsonl"
"""One line for each Python process that started under the probe, and one for each that imported torch."""


def rank_file(rank: int, pid: int | None = None) -> str:
    """Return the name of a rank's event file. Further processes with the same rank add their pid."""
    return "rank-%d.jsonl" % rank if pid is None else "rank-%d-pid-%d.jsonl" % (rank, pid)


def stack_file(pid: int) -> str:
    return "stacks-%d.txt" % pid
