"""A checkpoint does not contain the trained weights.

**What it means.** The saved tensors match neither the model's current weights nor an expected variant of them (a
different dtype, a moving average, an earlier state), or they contain NaN or Inf. Training itself may have worked, but
its result is lost.

**Why it happens.** Common causes are:

- a state dict that was gathered, renamed, merged or quantized incorrectly before it was saved
- a different model instance (freshly created, or an outdated copy) that was saved instead of the trained one
- weights that became NaN before they were saved

**What to do.** Save `model.state_dict()` of the model that the optimizer trains, load it again, and check with
`torch.equal()` that one tensor matches the model in memory. Resume from the last checkpoint without NaN or Inf; the
report lists the usable checkpoints.

**When it is not reported.** It is not reported for copies of earlier best weights that are saved later, half-precision
copies, moving averages, a previously trained model, and files without weights.

**Severity.** The severity is `fatal` if the newest checkpoint of a finished run contains NaN or Inf, and `warn`
otherwise.

Sources: huggingface/transformers#29903.
"""

from __future__ import annotations

from typing import Any

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, trains
from holdfast.testing.relations import steps


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    newest = attempt.saves.newest
    if newest is None or not (newest.nonfinite or newest.matches == "differs"):
        return None
    path = newest.path or "a checkpoint in memory"
    if newest.nonfinite:
        return Finding(
            severity="fatal" if attempt.finished else "warn",
            corrupt_from=newest.step,
            message=f"{path} contains weights that are NaN or Inf.",
            evidence=[f"saved after step {newest.step}: NaN or Inf in {newest.nonfinite} of {newest.compared} tensors"],
            remedies=[
                "go back to an earlier checkpoint",
                "find the first step at which the loss or a gradient was NaN or Inf",
            ],
        )
    return Finding(
        severity="warn",
        message=f"{path} does not contain the weights that are being trained.",
        evidence=[
            (
                f"saved after step {newest.step}: of {newest.compared} tensors compared, these differ from the model's weights: "
                f"{', '.join(newest.differing[:5])}"
            ),
            "they are not a conversion to a different dtype, a known average, an earlier state, or close to the model's weights",
        ],
        remedies=[
            "save model.state_dict() of the model that the optimizer trains",
            "load the file again and compare one tensor with that of the model in memory (torch.equal)",
        ],
    )


def _saved(matches: str, *, nonfinite: int = 0, compared: int = 4, step: int = 10) -> list[events.AnyEvent]:
    fields: dict[str, Any] = {"differing": ["fc.weight"] if matches == "differs" else []}
    return [
        events.Saved(
            at=float(step),
            step=step,
            path="/home/ann/last.pt",
            tensors=4,
            compared=compared,
            matches=matches,
            nonfinite=nonfinite,
            **fields,
        )
    ]


_EXPECTED = {
    "equal": "equal to the current weights",
    "cast": "the current weights in a different dtype",
    "average": "a known average of the weights",
    "earlier": "the weights of an earlier step",
    "near": "close to the current weights",
}

RULE = Rule(
    kind="proof",
    on=(events.Saved, events.AttemptEnded),
    judge=judge,
    contradicts=("saved-equals-live",),
    cases=lambda: [
        Case("other weights are saved", "warn", trains(), steps(10), _saved("differs")),
        Case("NaN in the last checkpoint", "fatal", steps(10), _saved("equal", nonfinite=2), ended(0)),
        Case("NaN in an intermediate checkpoint", "warn", steps(10), _saved("equal", nonfinite=2)),
        *(
            Case(f"the saved weights are {what}", None, steps(10), _saved(how), ended(0))
            for how, what in _EXPECTED.items()
        ),
        Case("no weights in the file", None, _saved("not compared", compared=0), ended(0)),
    ],
)
