"""The system killed the training because memory ran out.

**What it means.** SIGKILL (`zsh: killed`, exit status 137) leaves no traceback and no error message. The system's log,
or the memory that was left just before, shows that memory was the reason.

**Why it happens.** The training, its DataLoader workers and everything else on the machine needed more memory than
there is: a leak that grows with every epoch, a validation that needs more than training, a cache, another program. On a
Mac the GPU uses the same memory, and the default limit of the MPS allocator is more than many Macs have.

**What to do.** Holdfast keeps the checkpoints and resumes from them. If it happens again, use a smaller batch with more
accumulation, no dataset cache, and a lighter validation.

**Confidence.** Certain with a line from the kernel or the memory cgroup; likely if only the memory samples point to it.

Sources: ultralytics#7471; `memorystatus: killing largest compressed process` in the macOS log; cgroup `memory.events`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, memory, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_MEMORY_PATTERN = re.compile(r"oom|out of memory|memorystatus|jetsam|low swap|lack of memory", re.IGNORECASE)
_ABOUT_THIS_TRAINING = ("cgroup", "kernel log", "journal", "jetsam report")
"""Sources that are about this training; other sources may be about another process."""
SCARCE = 0.04
"""Available memory below this fraction of the total is scarce."""


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    if failure is None or killed_by(failure) != "SIGKILL":
        return None
    attempt = state.attempt
    system_log = any(
        item.source in _ABOUT_THIS_TRAINING and _MEMORY_PATTERN.search(item.text) for item in failure.evidence
    )
    total = state.started.memory_total if state.started else None
    last = attempt.memory.samples[-1] if attempt.memory.samples else None
    scarce = last is not None and total is not None and last.available < SCARCE * total
    budget = state.started.memory_budget if state.started else None
    full = last is not None and budget is not None and last.rss > (1.0 - SCARCE) * budget
    unsupervised = state.started is not None and not state.started.supervisor and last is None
    if not (system_log or scarce or full or unsupervised):
        return None
    evidence = quote_evidence(failure)
    if last is not None:
        evidence.append(
            f"last sample: the training used {_gib(last.rss)}, {_gib(last.available)} available, {_gib(last.swap)} in swap"
        )
    if unsupervised and not system_log:
        evidence.append("neither memory nor the system log was recorded; running out of memory is the usual reason")
    killed = (
        "was killed"
        if system_log
        else "was most likely killed (almost no memory was left; the system logged nothing)"
        if scarce
        else f"was most likely killed (it used the {_gib(budget or 0)} that the plan allows; the system logged nothing)"
        if full
        else "was killed (SIGKILL), most likely"
    )
    return Finding(
        rule="killed-out-of-memory",
        severity="fatal",
        message=f"The training {killed} because memory ran out, {describe_position(attempt)}.",
        evidence=evidence,
        confidence="proven" if system_log else "likely",
        remedies=[
            "use a smaller batch with more gradient accumulation: the effective batch stays the same",
            "switch off dataset caching (Ultralytics: cache=False)",
            "make validation lighter: a smaller validation batch",
        ],
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


RULE = Rule(
    id="killed-out-of-memory",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=80,
    cases=[
        Case(
            "the kernel log reports it",
            [
                *started(),
                *trains(),
                *losses(1.0),
                *ended(signal="SIGKILL", evidence=[("kernel log", "Out of memory: Killed process 100 (python)")]),
            ],
            "fatal",
        ),
        Case(
            "the macOS log reports it",
            [
                *started(),
                *ended(
                    137, evidence=[("kernel log", "memorystatus: killing largest compressed process python3.11 [100]")]
                ),
            ],
            "fatal",
        ),
        Case(
            "nothing reports it, but no memory was left", [*started(), *memory(0.3), *ended(signal="SIGKILL")], "fatal"
        ),
        Case(
            "it used all the memory that the plan allows",
            [*started(memory_budget=1 << 30), *memory(9.0), *ended(signal="SIGKILL")],
            "fatal",
        ),
        Case(
            "the plan allows far more",
            [*started(memory_budget=64 << 30), *memory(9.0), *ended(signal="SIGKILL")],
            None,
        ),
        Case(
            "another process was killed because of memory",
            [
                *started(),
                *memory(9.0),
                *ended(signal="SIGKILL", evidence=[("kernel log, other", "Out of memory: Killed process 7")]),
            ],
            None,
        ),
        Case("killed with enough free memory", [*started(), *memory(9.0), *ended(signal="SIGKILL")], None),
        Case(
            "Holdfast itself stopped it", [*started(), *memory(0.3), *ended(signal="SIGKILL", stopped_by="user")], None
        ),
    ],
)
