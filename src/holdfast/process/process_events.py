"""Events of a child process, as `ChildProcess.wait` returns them one by one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exited:
    """The child itself has exited; its descendants may still run. Reported once."""

    code: int | None
    """None if it was killed by a signal."""
    signal: str | None = None
    """The name, such as "SIGKILL"."""


@dataclass(frozen=True)
class Interrupt:
    """The user asked to stop: Ctrl-C, or SIGINT to the supervisor."""

    delivered: bool
    """True if the child's terminal has already sent it SIGINT: a second one would break its clean shutdown."""


@dataclass(frozen=True)
class Terminate:
    """The supervisor received SIGTERM."""


@dataclass(frozen=True)
class Suspend:
    """Ctrl-Z or SIGTSTP. The next `wait` stops the child and the supervisor, and returns Continued after that."""

    whole_job: bool
    """True if Ctrl-Z was typed: the supervisor's whole process group stops, as with an ordinary terminal."""


@dataclass(frozen=True)
class Continued:
    seconds: float
    """How long everything was suspended. Near 0 if nothing could have continued the supervisor, so it did not stop."""


@dataclass(frozen=True)
class Forwarded:
    """A signal that is meant for the child was passed on to it."""

    signal: str


@dataclass(frozen=True)
class Hangup:
    """The terminal was closed. The run continues and is recorded."""


ProcessEvent = Exited | Interrupt | Terminate | Suspend | Continued | Forwarded | Hangup
