"""The system killed the training because memory ran out.

**What it means.** SIGKILL (`zsh: killed`, exit status 137) leaves no traceback and no error. The system's own words, or the
memory that was left just before, say that it was for memory.

**Why it happens.** The training, its loader workers and everything else on the machine needed more than there is: a leak
that grows with every epoch, a validation that needs more than training, a cache, another program. On a Mac the GPU's memory
is the same memory, and the default limit of the MPS allocator is above what many Macs have.

**What to do.** Holdfast keeps what was saved and goes on from it. If it comes again: a smaller batch with more
accumulation, no dataset cache, lighter validation.

**Confidence.** Certain with a line from the kernel or the memory cgroup; likely where only the memory samples speak.

Sources: ultralytics#7471; `memorystatus: killing largest compressed process` in macOS' log; cgroup `memory.events`.
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

_MEMORY_WORDS = re.compile(r"oom|out of memory|memorystatus|jetsam|low swap|lack of memory", re.IGNORECASE)
_ABOUT_US = ("cgroup", "kernel log", "journal", "jetsam report")
"""Sources that speak of this very training; the others may have been about somebody else's process."""
SCARCE = 0.04
"""Less than this part of all memory left is scarce."""


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    if gone is None or killed_by(gone) != "SIGKILL":
        return None
    attempt = state.attempt
    system_says = any(item.source in _ABOUT_US and _MEMORY_WORDS.search(item.text) for item in gone.evidence)
    total = state.started.memory_total if state.started else None
    last = attempt.memory.samples[-1] if attempt.memory.samples else None
    scarce = last is not None and total is not None and last.available < SCARCE * total
    budget = state.started.memory_budget if state.started else None
    full = last is not None and budget is not None and last.rss > (1.0 - SCARCE) * budget
    unwatched = state.started is not None and not state.started.supervisor and last is None
    if not (system_says or scarce or full or unwatched):
        return None
    evidence = quote_evidence(gone)
    if last is not None:
        evidence.append(
            f"last sample: the training held {_gib(last.rss)}, {_gib(last.available)} were left, {_gib(last.swap)} in swap"
        )
    if unwatched and not system_says:
        evidence.append("nobody recorded the memory or the system's words; memory that ran out is the usual reason")
    certain = (
        "was killed"
        if system_says
        else "was most likely killed (memory was almost gone; the system left no word)"
        if scarce
        else f"was most likely killed (it held the {_gib(budget or 0)} that the plan gives it; the system left no word)"
        if full
        else "was killed (SIGKILL), most likely"
    )
    return Finding(
        rule="killed-out-of-memory",
        severity="fatal",
        message=f"The training {certain} because memory ran out, {describe_position(attempt)}.",
        evidence=evidence,
        confidence="proven" if system_says else "likely",
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
            "the kernel says so",
            [
                *started(),
                *trains(),
                *losses(1.0),
                *ended(signal="SIGKILL", evidence=[("kernel log", "Out of memory: Killed process 100 (python)")]),
            ],
            "fatal",
        ),
        Case(
            "macOS says so",
            [
                *started(),
                *ended(
                    137, evidence=[("kernel log", "memorystatus: killing largest compressed process python3.11 [100]")]
                ),
            ],
            "fatal",
        ),
        Case("nobody says so, but nothing was left", [*started(), *memory(0.3), *ended(signal="SIGKILL")], "fatal"),
        Case(
            "it held all that the plan gives it",
            [*started(memory_budget=1 << 30), *memory(9.0), *ended(signal="SIGKILL")],
            "fatal",
        ),
        Case(
            "the plan gives it far more",
            [*started(memory_budget=64 << 30), *memory(9.0), *ended(signal="SIGKILL")],
            None,
        ),
        Case(
            "somebody else's process was killed for memory",
            [
                *started(),
                *memory(9.0),
                *ended(signal="SIGKILL", evidence=[("kernel log, other", "Out of memory: Killed process 7")]),
            ],
            None,
        ),
        Case("killed with memory to spare", [*started(), *memory(9.0), *ended(signal="SIGKILL")], None),
        Case("Holdfast itself ended it", [*started(), *memory(0.3), *ended(signal="SIGKILL", stopped_by="user")], None),
    ],
)
