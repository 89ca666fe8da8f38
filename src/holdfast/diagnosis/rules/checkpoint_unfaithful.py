"""A checkpoint does not contain the trained weights.

**What it means.** The weights passed to `torch.save` are neither the live weights, nor a cast or an average of them, nor
earlier live weights, nor close to any of these; or they contain values that are not finite. The training may be fine
and its result lost.

**Why it happens.** A state that was gathered, renamed, merged or quantized incorrectly before saving; a new or old
model object that is saved instead of the trained one; weights that became NaN before they were saved.

**What to do.** Save `model.state_dict()` of the model that the optimizer trains, load it again, and compare one tensor.
Go back to the last checkpoint that is finite.

**When it stays silent.** Best weights that were copied earlier and saved later, half-precision copies, moving averages,
another model that was trained before, files without weights. Non-finite values are fatal only if the newest checkpoint
of a finished run contains them.

Sources: huggingface/transformers#29903.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started, trains
from holdfast.testing.relations import steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "checkpoint-unfaithful"


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    newest = attempt.saves.newest
    if newest is None or not (newest.nonfinite or newest.matches == "differs"):
        return None
    path = newest.path or "a checkpoint in memory"
    if newest.nonfinite:
        return Finding(
            rule=ID,
            severity="fatal" if attempt.finished else "warn",
            corrupt_from=newest.step,
            message=f"{path} contains weights that are not finite.",
            evidence=[
                f"saved after step {newest.step}: NaN or infinity in {newest.nonfinite} of {newest.compared} tensors"
            ],
            remedies=[
                "go back to an earlier checkpoint",
                "find out when the loss or a gradient stopped being finite",
            ],
        )
    return Finding(
        rule=ID,
        severity="warn",
        message=f"{path} does not contain the weights that are being trained.",
        evidence=[
            (
                f"saved after step {newest.step}: of {newest.compared} tensors compared, these differ from the live weights: "
                f"{', '.join(newest.differing[:5])}"
            ),
            "they are not a cast, a known average, earlier live weights, or close to the live weights",
        ],
        remedies=[
            "save model.state_dict() of the model that the optimizer trains",
            "load the file again and compare one tensor with the live one before you rely on it",
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


RULE = Rule(
    id=ID,
    kind="proof",
    on=(events.Saved, events.AttemptEnded),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("other weights are saved", [*started(), *trains(), *steps(10), *_saved("differs")], "warn"),
        Case("NaN in the last checkpoint", [*started(), *steps(10), *_saved("equal", nonfinite=2), *ended(0)], "fatal"),
        Case("NaN in an intermediate checkpoint", [*started(), *steps(10), *_saved("equal", nonfinite=2)], "warn"),
        *(
            Case(f"saved weights: {how}", [*started(), *steps(10), *_saved(how), *ended(0)], None)
            for how in ("equal", "cast", "average", "earlier", "near")
        ),
        Case("no weights in the file", [*started(), *_saved("not compared", compared=0), *ended(0)], None),
    ],
)
