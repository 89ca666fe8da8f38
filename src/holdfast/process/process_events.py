"""What a child process can have to tell its supervisor: the stream that `ChildProcess.wait` returns one by one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exited:
    """The child itself has ended; what it left behind may still run. Told once."""

    code: int | None
    """None when a signal ended it."""
    signal: str | None = None
    """"SIGKILL" and the like."""


@dataclass(frozen=True)
class Interrupt:
    """The user asked to stop: Ctrl-C, or SIGINT to the supervisor."""

    delivered: bool
    """True when the child's own terminal has sent it SIGINT already: a second one would break its orderly end."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM reached the supervisor."""


@dataclass(frozen=True)
class Suspend:
    """Ctrl-Z or SIGTSTP. The next `wait` stops the child and the supervisor, and returns Continued after that."""

    whole_job: bool
    """True when the key was typed: then the supervisor's process group stops as one, as the terminal would have it."""


@dataclass(frozen=True)
class Continued:
    seconds: float
    """How long everything stood still; near 0 where nobody could have continued us, so that we did not stop."""


@dataclass(frozen=True)
class Forwarded:
    """A signal that is the child's business was passed on to it."""

    signal: str


@dataclass(frozen=True)
class Hangup:
    """The terminal is gone. The run goes on and is recorded."""


ProcessEvent = Exited | Interrupt | Terminate | Suspend | Continued | Forwarded | Hangup
