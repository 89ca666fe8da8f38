"""The verdict on a run, and the proofs that it is based on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.diagnosis.aggregators.metrics import (
    is_known_score,
    is_training_loss,
    merge_histories,
    newest_of,
    over_attempts,
)
from holdfast.diagnosis.engine import evaluate
from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.loss_semantics import has_single_optimizer, is_detector
from holdfast.diagnosis.record_gaps import gap_after
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.rules.probe_absent import reason as why_unseen
from holdfast.diagnosis.series import Series, fall
from holdfast.schema.events import as_number
from holdfast.schema.verdicts import Outcome, Proof, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.run_state import AttemptState, RunState

Answered = tuple[Literal["holds", "fails", "missing", "does not apply"], str]
"""The answer of a proof, and its detail."""
POSITIVE = ("loss-fell", "metric-rose")
"""Proofs that show that the model learned."""
EXIT_STATUS = {
    Outcome.LEARNED: 0,
    Outcome.UNPROVEN: 0,
    Outcome.NOT_LEARNED: 3,
    Outcome.FAILED: 4,
    Outcome.INTERRUPTED: 130,
}
TERMINATED = 143
INTERRUPTED = {
    "user": "interrupted by you",
    "terminate": "stopped because Holdfast received SIGTERM",
    "budget": "stopped because the time budget was used up",
}
"""Who stopped a run that could have continued -> the text of the verdict."""
MIN_VALIDATIONS = 3
MIN_FALL = 0.05
"""A loss that falls by less than this fraction proves nothing, even if the fall is well above the noise."""
ABOVE_ITS_START = 2.0
"""A loss that spiked and came down again has not fallen while it is still this many times the very first loss."""
MIN_LOSSES = 20
"""Fewer equal losses than this prove nothing."""
NEAR_SCORE, NEAR_PART = 0.02, 0.25
"""A score counts as reproduced within this absolute difference, or within this fraction of the score: files contain
averaged weights and half precision."""
MATCHES = {
    "equal": "",
    "cast": " (converted to another dtype)",
    "average": " (a moving average of them)",
    "earlier": " (of an earlier step)",
    "near": " (approximately)",
}
"""How saved weights match the weights in memory -> the text of the proof."""


def verdict(state: RunState) -> Verdict:
    """Return the verdict on a run whose last attempt is over."""
    attempt = state.attempt
    ended = attempt.ended
    stopped_by = ended.stopped_by if ended is not None else None
    if attempt.signals and attempt.signals[-1].ends_run:
        stopped_by = "terminate" if attempt.signals[-1].signal == "SIGTERM" else "user"
    if stopped_by in INTERRUPTED:
        reason = f"{INTERRUPTED[stopped_by]}, {describe_position(attempt)}"
        status = EXIT_STATUS[Outcome.INTERRUPTED] if stopped_by == "user" else TERMINATED
        return Verdict(outcome=Outcome.INTERRUPTED, reason=reason, exit_status=status)
    proofs = collect_proofs(state)
    failure = find_learning_failure(state)
    if failure is not None:
        return _make_verdict(Outcome.NOT_LEARNED, failure, proofs)
    if ended is None or ended.code != 0:
        return _make_verdict(Outcome.FAILED, _explain_failure(attempt), proofs)
    held = [proof for proof in proofs if proof.positive and proof.answer == "holds"]
    failed = [proof for proof in proofs if proof.answer == "fails"]
    if held and not failed:
        return _make_verdict(Outcome.LEARNED, "; ".join(proof.detail for proof in held), proofs)
    lacking = failed or [proof for proof in proofs if proof.positive]
    return _make_verdict(Outcome.UNPROVEN, "; ".join(proof.detail for proof in lacking), proofs)


def _make_verdict(outcome: Outcome, reason: str, proofs: list[Proof]) -> Verdict:
    return Verdict(outcome=outcome, reason=reason, proofs=proofs, exit_status=EXIT_STATUS[outcome])


def find_learning_failure(state: RunState) -> str | None:
    """Return the message of a fatal finding about learning that still applies at the end of the run."""
    rules = by_id()
    for finding in reversed(state.attempt.findings):
        rule = rules.get(finding.rule)
        if finding.severity == "fatal" and rule is not None and rule.kind in ("learning", "proof"):
            now = evaluate(rule, state)
            if now is not None and now.severity == "fatal":
                return now.message
    return None


def _explain_failure(attempt: AttemptState) -> str:
    rules = by_id()
    fatal = [finding for finding in attempt.findings if finding.severity == "fatal" and finding.rule in rules]
    best = max(fatal, key=lambda finding: rules[finding.rule].cause, default=None)
    if best is not None:
        return best.message
    return f"the command failed {describe_position(attempt)}, and no rule explains why"


def collect_proofs(state: RunState) -> list[Proof]:
    proofs = []
    for name, check in _CHECKS.items():
        answer, detail = check(state)
        proof = Proof(name=name, answer=answer, detail=detail, positive=name in POSITIVE and answer != "does not apply")
        proofs.append(_fail_if_contradicted(proof, state))
    return proofs


def _fail_if_contradicted(proof: Proof, state: RunState) -> Proof:
    if proof.answer in ("holds", "missing"):
        for rule_id in {finding.rule: None for finding in state.attempt.findings}:
            rule = by_id().get(rule_id)
            now = evaluate(rule, state) if rule is not None and proof.name in rule.contradicts else None
            if now is not None and now.severity != "note":
                return msgspec.structs.replace(proof, answer="fails", detail=f"{now.message} ({rule_id})")
    return proof


def _get_losses(state: RunState) -> Series:
    """Return the loss by step. If only a table of epochs was seen, return the sum of all loss components by epoch."""
    if state.loss.count or state.loss.nonfinite:
        return state.loss
    by_epoch = Series()
    for validation in merge_histories(state.validated):
        parts = [as_number(value) for name, value in validation.values.items() if is_training_loss(name)]
        seen = [part for part in parts if part is not None]
        if seen:
            by_epoch.add(validation.step, sum(seen))
    return by_epoch


def _check_loss_fell(state: RunState) -> Answered:
    losses = _get_losses(state)
    if not losses.count:
        why, _ = why_unseen(state.attempt)
        return "missing", "no loss was recorded" + (f" ({why})" if state.attempt.attached is None else "")
    move = fall(losses)
    if move is None:
        return "missing", f"too few losses were recorded ({losses.count}) to tell a decrease from noise"
    numbers = f"from {move.early:.4g} to {move.late:.4g} (noise ± {move.noise:.2g})"
    if not has_single_optimizer(state.attempt):
        return "missing", f"the loss changed {numbers}, which is inconclusive because several optimizers are used"
    if not move.beyond_noise:
        return "missing", f"the loss did not decrease significantly: {numbers}"
    decreased = f"the loss decreased {numbers}"
    if move.early - move.late < MIN_FALL * abs(move.early):
        return "missing", f"{decreased}, by less than {MIN_FALL:.0%}: too little to show learning"
    first = losses.first
    if first is not None and 0.0 < ABOVE_ITS_START * first < move.late and not is_detector(state.attempt):
        return "missing", f"{decreased}, but is still higher than at the start ({first:.4g})"
    return "holds", decreased


def _check_metric_rose(state: RunState) -> Answered:
    """Check whether a score ends well above its first measurement, regardless of the attempt that made it."""
    newest = newest_of(state.validated)
    for name in newest.scores() if newest is not None else ():
        values = over_attempts(state.validated, name).values
        if len(values) < MIN_VALIDATIONS or not all(map(math.isfinite, values)):
            continue
        first, late = values[0], values[-max(1, len(values) // 3) :]
        if min(late) > first and max(late) > 1.05 * first:
            return "holds", f"{name} rose from {first:.4g} to {max(late):.4g} over {len(values)} validations"
        return "missing", f"{name} did not improve significantly: from {first:.4g} to {values[-1]:.4g}"
    return "does not apply", "fewer than three validations with a score were recorded"


def _check_metric_reproduced(state: RunState) -> Answered:
    """Compare the trainer's validation of the final checkpoint with the scores during training, in all attempts."""
    metrics = state.attempt.metrics
    final = metrics.final.values if metrics.final is not None else {}
    for name in metrics.scores():
        again = as_number(final.get(name))
        before = [value for value in over_attempts(state.validated, name).values if math.isfinite(value)]
        if again is None or not before:
            continue
        best = max(before)
        if not best and not again:
            return (
                "does not apply",
                f"{name} was 0 during training and is 0 for the final checkpoint: there is nothing to reproduce",
            )
        near = math.isfinite(again) and abs(again - best) <= max(NEAR_SCORE, NEAR_PART * best)
        detail = f"{name} of the final checkpoint is {again:.4g}; the best during training was {best:.4g}"
        return "holds" if near else "fails", detail
    return "does not apply", "the checkpoint was not validated again"


def _check_metrics_not_zero(state: RunState) -> Answered:
    newest = next((metrics.latest for metrics in reversed(state.validated) if metrics.latest is not None), None)
    if newest is None:
        return "does not apply", "no metric was recorded"
    scores = {name: as_number(value) for name, value in newest.values.items() if is_known_score(name)}
    if scores and not any(scores.values()):
        return "fails", "every metric of the last validation is 0"
    nonfinite = [name for name, value in scores.items() if value is not None and not math.isfinite(value)]
    if nonfinite:
        return "fails", f"NaN or Inf in the last validation: {', '.join(nonfinite[:3])}"
    return "holds", "the metrics of the last validation are not all 0"


def _check_losses_finite(state: RunState) -> Answered:
    loss = state.attempt.loss
    if not loss.count and not loss.nonfinite:
        loss = _get_losses(state)
    if not loss.count and not loss.nonfinite:
        return "missing", "no loss was recorded"
    if loss.nonfinite_in_a_row:
        return "fails", f"the loss has been NaN or Inf since step {loss.nonfinite_since}"
    if loss.nonfinite:
        return "holds", f"{loss.nonfinite} losses were NaN or Inf, but training recovered"
    return "holds", "every loss was finite"


def _check_losses_vary(state: RunState) -> Answered:
    losses = _get_losses(state)
    if losses.count < MIN_LOSSES:
        return "missing", "too few losses were recorded to check this"
    if losses.lowest == losses.highest:
        return "fails", f"every loss was {losses.points[0].mean:g}"
    return "holds", "the losses vary"


def _check_weights_moved(state: RunState) -> Answered:
    """Check the newest sample of the weights. It may be of an earlier attempt, if the newest was over before its first."""
    checked = [attempt.weights for attempt in state.ancestry if attempt.weights.weight_updates is not None]
    seen = checked[-1].weight_updates if checked else None
    if seen is None:
        return "missing", "no weight update was checked"
    stuck = [tensor.name for tensor in seen.stuck if tensor.update_ulps is not None and tensor.update_ulps >= 1.0]
    if stuck:
        return "fails", f"these weights did not change although their gradients are nonzero: {', '.join(stuck[:3])}"
    if seen.moved:
        return "holds", f"{seen.moved} of {seen.checked} tensors changed in the last step that was checked"
    most_moved = max(weights.most_moved for weights in checked)
    if most_moved:
        return "holds", f"{most_moved} tensors changed during the run, but none in the last step that was checked"
    without_gradient = len(seen.no_gradient) + len(seen.zero_gradient) >= seen.checked
    why = " and none of them received a gradient" if without_gradient else ""
    return "fails", f"none of the {seen.checked} weight tensors changed{why}"


def _check_plan_done(state: RunState) -> Answered:
    attempt = next((a for a in reversed(state.ancestry) if a.epoch is not None), state.attempt)
    done = attempt.epoch is not None and attempt.planned_epochs is not None and attempt.epoch >= attempt.planned_epochs
    gap = gap_after(state.attempt)
    if gap is not None and not done:
        place = f" after step {gap}" if gap else ""
        steps = state.attempt.last_step
        return (
            "does not apply",
            f"cannot be checked: events{place} are missing from the journal ({steps} steps were completed)",
        )
    if attempt.planned_epochs is None or attempt.epoch is None:
        return _check_schedule_done(attempt)
    detail = f"{attempt.epoch} of {attempt.planned_epochs} epochs"
    return ("holds", detail) if done else ("missing", f"{detail}: the command stopped early")


def _check_schedule_done(attempt: AttemptState) -> Answered:
    """Take the number of planned steps from the learning rate schedule."""
    for schedule in attempt.rates.schedules.values():
        if schedule.planned is not None and schedule.done is not None:
            detail = f"{schedule.scheduler} was configured for {schedule.planned} steps; {schedule.done} were done"
            return "holds" if schedule.done >= schedule.planned else "missing", detail
    return "does not apply", "the number of planned steps is unknown"


def _check_checkpoint_reloads(state: RunState) -> Answered:
    attempt = state.attempt
    tried = [reloaded for reloaded in attempt.reloaded.values() if reloaded.loads is not None]
    if not tried:
        for unread in attempt.reloaded.values():
            return "does not apply", f"{unread.path} was not reloaded: {unread.why}"
        missing = "no saved file was reloaded" if attempt.saves.count else "no checkpoint was saved"
        return "does not apply", missing
    for reloaded in reversed(tried):
        if not reloaded.loads:
            return "fails", f"{reloaded.path} does not load: {reloaded.why}"
        if reloaded.nonfinite:
            return "fails", f"{reloaded.path} contains NaN or Inf: {', '.join(reloaded.nonfinite[:3])}"
    detail = f"{tried[-1].path} loads: {tried[-1].tensors} tensors, all finite"
    total = max(reloaded.of for reloaded in tried)
    if total > len(tried):
        detail += f"; only the newest {len(tried)} of {total} checkpoints were reloaded"
    return "holds", detail


def _check_saved_equals_live(state: RunState) -> Answered:
    compared = [saved for attempt in state.ancestry for saved in attempt.saves.by_path.values() if saved.compared]
    if not compared:
        return "does not apply", "no saved weights could be compared with the model in memory"
    newest = compared[-1]
    if newest.nonfinite:
        return "fails", f"{newest.path} contains NaN or Inf"
    if newest.matches in MATCHES:
        return "holds", f"{newest.path} matches the weights in memory{MATCHES[newest.matches]}"
    return "missing", f"{newest.path} differs from the weights in memory"


_CHECKS: dict[str, Callable[[RunState], Answered]] = {
    "loss-fell": _check_loss_fell,
    "metric-rose": _check_metric_rose,
    "metrics-not-zero": _check_metrics_not_zero,
    "metric-reproduced": _check_metric_reproduced,
    "losses-finite": _check_losses_finite,
    "losses-not-constant": _check_losses_vary,
    "weights-moved": _check_weights_moved,
    "planned-steps-done": _check_plan_done,
    "saved-equals-live": _check_saved_equals_live,
    "checkpoint-reloads": _check_checkpoint_reloads,
}
