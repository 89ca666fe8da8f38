"""Evaluation takes far more memory than training.

**What it means.** Each time the model is evaluated, memory usage rises well above what training needs, and falls again
afterwards. A run whose memory usage was safe for days can be killed in its next validation.

**Why it happens.** The validation batch is often twice the size of the training batch. Other causes are predictions of
the whole set that are collected before they are scored, many boxes per image (`max_det`), plots, additional
`DataLoader` workers, or gradients that are not disabled.

**What to do.** Use a smaller validation batch, half precision, fewer boxes per image, and no plots. Move results to the
CPU batch by batch. Wrap the evaluation in `torch.no_grad()`.

**When it is reported.** In at least two evaluations, memory usage was more than 1.5 times as high as during the
training steps before it, and more than 1 GiB higher. Memory must have been measured both during each evaluation and
during the training steps before it.

**Severity.** It is reported as `warn` if less than 5% of the machine's memory was available during one of these
evaluations, and as a `note` otherwise.

Sources: in one reported case, a run was killed during or near the validation of epoch 94.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.remedy_ids import LIGHTER_VALIDATION
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import GIB, size
from holdfast.testing.histories import sample, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.aggregators.memory import EvaluationMemory

LIMITS = {"times": 1.5, "more_gib": 1.0, "evaluations": 2, "available_part": 0.05}


def judge(state: RunState) -> Finding | None:
    evaluations = state.attempt.memory.evaluations
    limits = state.get_limits("validation-memory-spike", LIMITS)
    if len(evaluations) < limits["evaluations"] or _find_spike(evaluations[-1], limits) is None:
        return None
    spikes = [evaluation for evaluation in evaluations if _find_spike(evaluation, limits) is not None]
    if len(spikes) < limits["evaluations"]:
        return None
    total = state.started.memory_total if state.started is not None else None
    min_left = min(evaluation.during.available for evaluation in spikes)
    is_close = total is not None and min_left < limits["available_part"] * total
    during, training, which = _find_spike(spikes[-1], limits) or (0, 0, "")
    fewer_boxes = hint(state, "fewer-boxes")
    return Finding(
        severity="warn" if is_close else "note",
        message=(
            f"Evaluation takes {during / training:.1f} times the memory of training ({size(during)} compared with {size(training)})"
            + (f", and only {size(min_left)} was available." if is_close else ".")
        ),
        evidence=[
            f"{len(spikes)} of {len(evaluations)} evaluations, the last at step {spikes[-1].step}: {which}",
            f"minimum available memory during evaluation: {size(min_left)}" + (f" of {size(total)}" if total else ""),
        ],
        remedies=[
            "wrap the evaluation in torch.no_grad(), and move results to the CPU batch by batch",
            f"use a smaller validation batch, half precision and no plots{hint(state, 'lighter-validation')}",
            *([f"keep fewer boxes per image{fewer_boxes}"] if fewer_boxes else []),
            "use fewer DataLoader workers for evaluation",
        ],
    )


def _find_spike(evaluation: EvaluationMemory, limits: Limits) -> tuple[int, int, str] | None:
    """Return the memory of evaluation and of training, and which memory that is, if there is a spike."""
    for during, training, which in (
        (evaluation.during.rss, evaluation.training.rss, "memory of all processes"),
        (evaluation.during.driver, evaluation.training.driver, "memory of the device's driver"),
    ):
        if training and during > limits["times"] * training and during - training > limits["more_gib"] * GIB:
            return during, training, which
    return None


def _make_evaluations(times: int, training: float, during: float, *, others: float = 2.0) -> list[events.AnyEvent]:
    history = trains()
    for n in range(times):
        now = 1000.0 * n
        for windows, rss in ((range(100, 800, 100), training), (range(820, 980, 40), during)):
            history += [sample(now + window, rss=rss, available=16.0 - others - rss) for window in windows]
        history.append(events.Evaluation(at=now + 990.0, step=100 * (n + 1), seconds=180.0, fetches=50))
    return history


RULE = Rule(
    kind="resources",
    on=(events.Evaluation,),
    judge=judge,
    limits=LIMITS,
    predicts_kill=True,
    restarts_while_running=True,
    charts=("memory",),
    remedies=LIGHTER_VALIDATION,
    cases=lambda: [
        Case("twice the memory of training, each time", "note", _make_evaluations(3, 3.0, 6.0)),
        Case("almost no memory is left", "warn", _make_evaluations(3, 5.0, 13.5)),
        Case("a single evaluation", None, _make_evaluations(1, 3.0, 9.0)),
        Case("about the memory of training", None, _make_evaluations(5, 3.0, 3.4)),
        Case("twice the memory of training, but less than 1 GiB more", None, _make_evaluations(5, 0.3, 0.7)),
        Case("less memory than training", None, _make_evaluations(5, 4.0, 2.0)),
    ],
)
