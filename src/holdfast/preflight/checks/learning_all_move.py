"""Does every parameter that gets a gradient change?

**What it checks.** While the dry run overfits one batch, records which parameters of the optimizer get a nonzero gradient, and reports
those that are still bitwise identical afterwards.

**Why.** If a parameter has a gradient but does not change, the update was lost or written elsewhere: in-place operators lose their
result for non-contiguous tensors on some accelerators, and an optimizer may update copies. The rest of the model compensates, and the
loss still falls.

**What to do.** On an accelerator, see device-operators, or make the parameter contiguous. Otherwise check which tensors the optimizer
updates.

**When it is not checked.** Parameters in half precision, and parameters whose updates are so small that rounding would remove them, are
not checked.
"""

from __future__ import annotations

from holdfast.preflight.case_dry_runs import FALLING, curve, experiments, on_cpu
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, fatal
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments


def run(context: CheckContext) -> Answer:
    curves = [
        line["moved"] for line in get_dry_run_with_experiments(context).select("curve") if line["mode"] == "again"
    ]
    # One learning rate may be too small to show a change: a tensor is considered changed if it changed at any rate.
    moved = min(curves, key=lambda curve: int(curve["still"]))
    still, count = int(moved["still"]), int(moved["moved"])
    if not still and not count:
        raise NotChecked("no tensor got a gradient with an update large enough to show")
    rest = [
        f"{number} {why}"
        for number, why in (
            (moved["without_gradient"], "got no gradient"),
            (moved["too_small"], "have too little precision for such small updates"),
        )
        if number
    ]
    message = f"{count:,} of {count + still:,} tensors that got a gradient changed" + (
        f"; {', '.join(rest)}" if rest else ""
    )
    if not still:
        return Answer(message)
    names = ", ".join(moved["names"][:4]) + (f" and {still - 4} more" if still > 4 else "")
    return Answer(
        message,
        (
            fatal(
                f"{'A tensor gets' if still == 1 else f'{still} tensors get'} gradients and never change{'s' if still == 1 else ''}: {names}.",
                evidence=[message, *moved["names"]],
                remedies=[
                    "make these parameters contiguous: parameter.data = parameter.data.contiguous()",
                    "check that the optimizer updates the parameters themselves, not copies of them",
                ],
            ),
        ),
    )


def _moved(moved: int, still: int, **more: int) -> dict[str, object]:
    names = [f"layer{n}.weight" for n in range(still)]
    return {"moved": moved, "still": still, "names": names, "without_gradient": 0, "too_small": 0, **more}


CHECK = Check(
    kind="learning",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("all tensors change", on_cpu(experiments(), curve(FALLING)), "passed"),
        Case("one tensor does not change", on_cpu(experiments(), curve(FALLING, moved=_moved(7, 1))), "fatal"),
        Case(
            "one tensor changes only at a higher learning rate",
            on_cpu(experiments(), curve(FALLING, moved=_moved(7, 1)), curve(FALLING, 10.0)),
            "passed",
        ),
        Case(
            "all parameters are in half precision",
            on_cpu(experiments(), curve(FALLING, moved=_moved(0, 0, too_small=8))),
            "not checked",
        ),
    ),
)
