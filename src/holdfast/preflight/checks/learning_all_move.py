"""Does every weight that gets a gradient move?

**What it asks.** In the dry run, while one batch is learned: of the tensors that the optimizer holds, which got a gradient that is not
zero, and which of those are bit by bit what they were?

**Why.** A gradient without a change means that the update went elsewhere: in-place operators that lose their result on a device where a
tensor is not contiguous, an optimizer that works on copies. The rest of the model learns around the dead part, and the loss falls.

**What to do.** On a device, look at device-operators, or make that weight contiguous; else look at what the optimizer writes to.

**When it stays silent.** About weights in half precision, and about updates so small that rounding would swallow them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.preflight.case_dry_runs import FALLING, curve, experiments, on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "learning-all-move"


def run(context: CheckContext) -> Answer:
    curves = [line["moved"] for line in get_dry_run_with_experiments(context).of("curve") if line["mode"] == "again"]
    # One rate may be too small to show: what moved at any of them does move.
    moved = min(curves, key=lambda it: int(it["still"]))
    still, count = int(moved["still"]), int(moved["moved"])
    if not still and not count:
        raise NotChecked("no tensor got a gradient whose update must show")
    rest = [
        f"{number} {why}"
        for number, why in (
            (moved["without_gradient"], "got none"),
            (moved["too_small"], "are too coarse for such small updates"),
        )
        if number
    ]
    message = f"{count:,} of {count + still:,} tensors that got a gradient moved" + (
        f"; {', '.join(rest)}" if rest else ""
    )
    if not still:
        return Answer(message)
    names = ", ".join(moved["names"][:4]) + (f" and {still - 4} more" if still > 4 else "")
    return Answer(
        message,
        (
            finding(
                ID,
                "fatal",
                f"{'A tensor gets' if still == 1 else f'{still} tensors get'} gradients and never change{'s' if still == 1 else ''}: {names}.",
                evidence=[message, *moved["names"]],
                remedies=[
                    "make these weights contiguous: parameter.data = parameter.data.contiguous()",
                    "look at what the optimizer writes to: a copy of a weight is not the weight",
                ],
            ),
        ),
    )


def _moved(moved: int, still: int, **more: int) -> dict[str, object]:
    names = [f"layer{n}.weight" for n in range(still)]
    return {"moved": moved, "still": still, "names": names, "without_gradient": 0, "too_small": 0, **more}


CHECK = Check(
    id=ID,
    kind="learning",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("all move", on_cpu(recorded_dry_run(experiments(), curve(FALLING))), "passed"),
        Case("one does not", on_cpu(recorded_dry_run(experiments(), curve(FALLING, moved=_moved(7, 1)))), "fatal"),
        Case(
            "it moves at a higher rate",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING, moved=_moved(7, 1)), curve(FALLING, 10.0))),
            "passed",
        ),
        Case(
            "all in half precision",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING, moved=_moved(0, 0, too_small=8)))),
            "not checked",
        ),
    ),
)
