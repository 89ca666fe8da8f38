"""The system killed the training process because memory ran out.

**What it means.** The process was terminated by SIGKILL (`zsh: killed`, exit status 137), which leaves no traceback and
no error message. The kernel log, or the low amount of free memory just before the kill, shows that memory ran out.

**Why it happens.** The training process, its DataLoader workers and everything else on the machine needed more memory
than was available. Common causes are a leak that grows with every epoch, validation that needs more memory than
training, a cache, or another program. On a Mac, the GPU uses the same memory, and the default memory limit of the MPS
allocator exceeds the physical memory of many Macs.

**What to do.** Holdfast keeps the checkpoints and resumes from them. If it happens again, reduce the batch size and
increase gradient accumulation, disable dataset caching (`cache=False`), and use a smaller validation batch.

**Confidence.** The confidence is `proven` if the kernel log, a macOS jetsam report or the cgroup's `memory.events`
reports the kill. It is `likely` if only the memory measurements suggest it, or if neither memory nor the kernel log was
recorded.

Sources: ultralytics#7471; `memorystatus: killing largest compressed process` in the macOS log; cgroup `memory.events`.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.remedy_ids import HOST_MEMORY
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import size
from holdfast.testing.histories import ended, losses, memory, started, trains

_MEMORY_PATTERN = re.compile(r"oom|out of memory|memorystatus|jetsam|low swap|lack of memory", re.IGNORECASE)
_ABOUT_THIS_TRAINING = ("cgroup", "kernel log", "journal", "jetsam report")
"""Sources that are about this run; other sources may be about another process."""
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
            f"last measurement: the run used {size(last.rss)}, {size(last.available)} available, {size(last.swap)} in swap"
        )
    if unsupervised and not system_log:
        evidence.append("neither memory nor the system log was recorded; running out of memory is the usual reason")
    killed = (
        "was killed"
        if system_log
        else "was most likely killed (almost no memory was left; the system logged nothing)"
        if scarce
        else f"was most likely killed (it used the {size(budget or 0)} that the plan allows; the system logged nothing)"
        if full
        else "was killed (SIGKILL), most likely"
    )
    return Finding(
        severity="fatal",
        message=f"The training process {killed} because memory ran out, {describe_position(attempt)}.",
        evidence=evidence,
        confidence="proven" if system_log else "likely",
        remedies=[
            "reduce the batch size and increase gradient accumulation: the effective batch size stays the same",
            f"disable dataset caching{hint(state, 'no-cache')}",
            "use a smaller validation batch",
        ],
    )


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=80,
    charts=("memory",),
    remedies=HOST_MEMORY,
    cases=lambda: [
        Case(
            "the kernel log reports it",
            "fatal",
            trains(),
            losses(1.0),
            ended(signal="SIGKILL", evidence=[("kernel log", "Out of memory: Killed process 100 (python)")]),
        ),
        Case(
            "the macOS log reports it",
            "fatal",
            ended(137, evidence=[("kernel log", "memorystatus: killing largest compressed process python3.11 [100]")]),
        ),
        Case("nothing reports it, but no memory was left", "fatal", memory(0.3), ended(signal="SIGKILL")),
        Case(
            "it used all the memory that the plan allows",
            "fatal",
            started(memory_budget=1 << 30),
            memory(9.0),
            ended(signal="SIGKILL"),
        ),
        Case("the plan allows far more", None, started(memory_budget=64 << 30), memory(9.0), ended(signal="SIGKILL")),
        Case(
            "another process was killed because of memory",
            None,
            memory(9.0),
            ended(signal="SIGKILL", evidence=[("kernel log, other", "Out of memory: Killed process 7")]),
        ),
        Case("killed with enough free memory", None, memory(9.0), ended(signal="SIGKILL")),
        Case("Holdfast itself stopped it", None, memory(0.3), ended(signal="SIGKILL", stopped_by="user")),
    ],
)
