"""What can go wrong that a person can mend.

HoldfastError                a sentence, what to do next, where to look
└── UsageError               exit status 2: the request itself cannot be carried out
    ├── CommandNotRunnable   no such program, not executable, a folder
    ├── UnknownRun           no run by that name or path
    ├── RunExists            --dir names a folder that already holds something
    ├── RunIsLive            another supervisor holds this run
    ├── RunIsOver            nothing is left to resume
    ├── UntrustedRun         it belongs to another user
    ├── FolderNotWritable    the run folder cannot be made or written
    ├── FolderGone           the working folder was removed
    ├── PlanInvalid          a setting that makes no sense
    ├── DataSetInvalid       a data set that is missing, or not what its description says
    ├── RecordUnknown        no record of a training, or none that can be read
    ├── JournalUnreadable    the record was written by a newer Holdfast, cannot be read, or is none
    └── PlatformUnsupported  Windows
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Shown to the user as it is, never with a stack trace. Exit status 1 is for faults of Holdfast's own: no kind of these has it."""

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
