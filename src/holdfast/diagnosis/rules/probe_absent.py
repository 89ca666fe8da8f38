"""The probe recorded nothing: this attempt was supervised only from outside.

**What it means.** Exit, output and memory are still observed. Steps, losses, weights and hangs are not, so the verdict
can only be `unproven`.

**Why it happens.** The interpreter ignores the environment (`python -I`, `-E`, `-S`), the training runs in a container
or on another machine, a wrapper cleared the environment or replaced PYTHONPATH, the command is not Python, or it never
imports torch.

**What to do.** Remove `-I`/`-E`/`-S`, or make the wrapper pass on PYTHONPATH and the HOLDFAST_ variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

_FLAGS = ("-I", "-E", "-S")


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if attempt.ended is None or attempt.attached is not None or attempt.others:
        return None
    why, remedy = reason(attempt)
    return Finding(
        rule="probe-absent",
        severity="note",
        message=f"No training step was observed: {why}.",
        evidence=[
            f"{len(attempt.interpreters)} Python interpreters loaded the probe; torch: {attempt.torch or 'never imported'}"
        ],
        remedies=[remedy] if remedy else [],
    )


def reason(attempt: AttemptState) -> tuple[str, str]:
    """Return why no step was observed, as far as it is known, and the remedy."""
    command = attempt.started.command
    flag = next(
        (
            word
            for word in command[1:3]
            if word in _FLAGS
            or (word[:1] == "-" and set(word[1:]) & set("IES") and word[1:].isalpha() and len(word) <= 4)
        ),
        None,
    )
    if not attempt.interpreters:
        if flag is not None:
            return f"the interpreter was started with {flag} and ignores the environment", f"remove {flag}"
        return (
            "no Python interpreter of this command loaded the probe (not Python, a container, or a cleared environment)",
            "pass PYTHONPATH and the HOLDFAST_ variables on to the training",
        )
    if attempt.torch is None:
        return "the command never imported torch", ""
    return "torch was imported, but there was no backward pass, no optimizer step and no data loader", ""


RULE = Rule(
    id="probe-absent",
    kind="watching",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("no interpreter loaded the probe", [*started(), *ended(0, last_step=0)], "note"),
        Case("Python without torch", [*started(), trains()[0], *ended(0, last_step=0)], "note"),
        Case("the probe recorded the training", [*started(), *trains(), *losses(1.0), *ended(0)], None),
    ],
)
