"""Evaluating takes far more memory than training.

**What it means.** Each time the model is evaluated, memory goes up well above what training needs, and comes back. A training
that has run for days at a safe level can be killed by its next validation.

**Why it happens.** The validation batch is often twice the training batch, predictions of the whole set are collected before
they are scored, many boxes an image are kept (max_det), plots are drawn, loader workers of its own are started, or gradients
are not switched off.

**What to do.** A smaller validation batch, half precision, fewer boxes an image, no plots; move results to the CPU batch by
batch; `torch.no_grad()` around it.

**What it needs.** At least two evaluations, each with a sample of memory in its time and one of the training before it. It
is a note where one and a half times as much, and 1 GiB more, was held; a warning where memory was almost used up in one.

Sources: the fourth field report (killed during or near the validation of epoch 94).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import GIB, size
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.resources import sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators.memory import EvaluationMemory
    from holdfast.diagnosis.run_state import RunState

LIMITS = {"times": 1.5, "more_gib": 1.0, "evaluations": 2, "available_part": 0.05}


def judge(state: RunState) -> Finding | None:
    seen = state.attempt.memory.evaluations
    limits = state.tuned("validation-memory-spike", LIMITS)
    if len(seen) < limits["evaluations"] or _spike(seen[-1], limits) is None:
        return None
    spikes = [one for one in seen if _spike(one, limits) is not None]
    if len(spikes) < limits["evaluations"]:
        return None
    total = state.started.memory_total if state.started is not None else None
    least = min(one.during.available for one in spikes)
    close = total is not None and least < limits["available_part"] * total
    during, training, which = _spike(spikes[-1], limits) or (0, 0, "")
    ultralytics = state.attempt.adapter == "ultralytics"
    return Finding(
        rule="validation-memory-spike",
        severity="warn" if close else "note",
        message=(
            f"Evaluating takes {during / training:.1f} times the memory of training ({size(during)} against {size(training)})"
            + (f", and only {size(least)} were left then." if close else ".")
        ),
        evidence=[
            f"{len(spikes)} of {len(seen)} evaluations, the last at step {spikes[-1].step}: {which}",
            f"the least that was left while evaluating: {size(least)}" + (f" of {size(total)}" if total else ""),
        ],
        remedies=[
            "wrap the evaluation in torch.no_grad(), and move results to the CPU batch by batch",
            "use a smaller validation batch" + (" and plots=False half=True" if ultralytics else ""),
            *(["keep fewer boxes an image (max_det=100)"] if ultralytics else []),
            "use fewer loader workers for it",
        ],
    )


def _spike(one: EvaluationMemory, limits: Mapping[str, float]) -> tuple[int, int, str] | None:
    """What it held, what training held, and which memory that was."""
    for during, training, which in (
        (one.during.rss, one.training.rss, "memory of all processes"),
        (one.during.driver, one.training.driver, "memory of the device's driver"),
    ):
        if training and during > limits["times"] * training and during - training > limits["more_gib"] * GIB:
            return during, training, which
    return None


def _evaluations(times: int, training: float, during: float, *, others: float = 2.0) -> list[events.AnyEvent]:
    history = [*started(), *trains()]
    for n in range(times):
        now = 1000.0 * n
        for windows, rss in ((range(100, 800, 100), training), (range(820, 980, 40), during)):
            history += [sample(now + window, rss=rss, available=16.0 - others - rss) for window in windows]
        history.append(events.Evaluation(at=now + 990.0, step=100 * (n + 1), seconds=180.0, fetches=50))
    return history


RULE = Rule(
    id="validation-memory-spike",
    kind="resources",
    on=(events.Evaluation,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("twice as much, each time", _evaluations(3, 3.0, 6.0), "note"),
        Case("and almost nothing is left", _evaluations(3, 5.0, 13.5), "warn"),
        Case("once only", _evaluations(1, 3.0, 9.0), None),
        Case("about the same", _evaluations(5, 3.0, 3.4), None),
        Case("twice as much of very little", _evaluations(5, 0.3, 0.7), None),
        Case("less than training", _evaluations(5, 4.0, 2.0), None),
    ],
)
