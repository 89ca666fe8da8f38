"""Holdfast could not observe the training steps of this attempt.

**What it means.** The probe, which is the code that Holdfast loads into your Python process, recorded no training. The
exit status, the output and memory usage are still recorded. Steps, losses and weights are not, and hangs cannot be
detected. Holdfast therefore cannot tell whether the model learned: a run that exits with status 0 gets the verdict
`unproven`.

**Why it happens.** One of these is the cause:

- Python was started with `-I` or `-E`, which ignore `PYTHONPATH`, or with `-S`, which skips `sitecustomize`.
- Training runs in a container or on a different machine.
- A wrapper script cleared the environment or replaced `PYTHONPATH`.
- The command is not a Python program, its Python is not CPython 3.9 or newer, or it never imports torch.

**What to do.** This depends on the cause:

- Python options: remove `-I`, `-E` or `-S`.
- A wrapper script: pass `PYTHONPATH` and all variables that start with `HOLDFAST_` to the Python process.
- A container or a different machine: run `holdfast run` there, around the Python command.
- A command without torch: nothing. Holdfast can only record its exit status, output and memory usage.

**Severity.** It is always reported as a `note`.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains

_FLAGS = ("-I", "-E", "-S")


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if attempt.ended is None or attempt.attached is not None or attempt.others:
        return None
    why, remedy = reason(attempt)
    return Finding(
        severity="note",
        message=f"No training step was recorded: {why}.",
        evidence=[
            f"Python processes that loaded the probe: {len(attempt.interpreters)}; torch: {attempt.torch or 'never imported'}"
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
            return f"Python was started with {flag}, so it did not load the probe", f"remove {flag}"
        return (
            "no Python process of this command loaded the probe (not Python, a container, or a cleared environment)",
            "pass PYTHONPATH and the HOLDFAST_ variables to the Python process; in a container, run Holdfast inside it",
        )
    if attempt.torch is None:
        return "the command never imported torch", ""
    return "torch was imported, but there was no backward pass, no optimizer step and no DataLoader", ""


RULE = Rule(
    kind="watching",
    on=(events.AttemptEnded,),
    judge=judge,
    cases=lambda: [
        Case("no Python process loaded the probe", "note", ended(0, last_step=0)),
        Case("a Python command without torch", "note", trains()[0], ended(0, last_step=0)),
        Case("the probe recorded training steps", None, trains(), losses(1.0), ended(0)),
    ],
)
