"""Errors that the user can fix."""

from __future__ import annotations


class HoldfastError(Exception):
    """An error shown to the user without a stack trace. The exit status is never 1, which means an internal error."""

    exit_status = 2

    def __init__(self, what: str, *, next_step: str = "", look_at: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step
        self.look_at = look_at

    def __str__(self) -> str:
        lines = [self.what]
        if self.next_step:
            lines.append(f"Next: {self.next_step}")
        if self.look_at:
            lines.append(f"Look at: {self.look_at}")
        return "\n".join(lines)


class UsageError(HoldfastError):
    """The request cannot be carried out."""


class CommandNotRunnable(UsageError):
    """No such program, not executable, or a folder."""


class UnknownRun(UsageError):
    """No run with that name or path."""


class RunExists(UsageError):
    """--dir names a folder that is not empty."""


class RunIsLive(UsageError):
    """Another supervisor is running this run."""


class RunIsOver(UsageError):
    """There is nothing left to resume."""


class UntrustedRun(UsageError):
    """The run belongs to another user."""


class FolderNotWritable(UsageError):
    """The run folder cannot be created or written to."""


class FolderGone(UsageError):
    """The working folder was removed."""


class PlanInvalid(UsageError):
    """A setting is invalid."""


class DataSetInvalid(UsageError):
    """The dataset is missing, or does not match its description."""


class RecordUnknown(UsageError):
    """Not a record of a training, or not a readable one."""


class PlatformUnsupported(UsageError):
    """The system is Windows."""


class JournalUnreadable(UsageError):
    """The journal is missing, unreadable, or written by a newer Holdfast."""
