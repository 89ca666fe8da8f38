"""Errors that the user can fix.

HoldfastError                what happened, what to do next, where to look
└── UsageError               exit status 2: the request cannot be carried out
    ├── CommandNotRunnable   no such program, not executable, or a folder
    ├── UnknownRun           no run with that name or path
    ├── RunExists            --dir names a folder that is not empty
    ├── RunIsLive            another supervisor is running this run
    ├── RunIsOver            there is nothing left to resume
    ├── UntrustedRun         the run belongs to another user
    ├── FolderNotWritable    the run folder cannot be created or written to
    ├── FolderGone           the working folder was removed
    ├── PlanInvalid          a setting is invalid
    ├── DataSetInvalid       the dataset is missing, or does not match its description
    ├── RecordUnknown        not a record of a training, or not a readable one
    ├── JournalUnreadable    the journal is missing, unreadable, or written by a newer Holdfast
    └── PlatformUnsupported  Windows
"""

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
    pass


class CommandNotRunnable(UsageError):
    pass


class UnknownRun(UsageError):
    pass


class RunExists(UsageError):
    pass


class RunIsLive(UsageError):
    pass


class RunIsOver(UsageError):
    pass


class UntrustedRun(UsageError):
    pass


class FolderNotWritable(UsageError):
    pass


class FolderGone(UsageError):
    pass


class PlanInvalid(UsageError):
    pass


class DataSetInvalid(UsageError):
    pass


class RecordUnknown(UsageError):
    pass


class PlatformUnsupported(UsageError):
    pass


class JournalUnreadable(UsageError):
    pass
