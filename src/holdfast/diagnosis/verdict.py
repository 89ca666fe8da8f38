"""What a run came to, and the proofs that this rests on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.diagnosis.aggregators.metrics import (
    history_over,
    is_known_score,
    is_training_loss,
    newest_of,
    over_attempts,
)
from holdfast.diagnosis.engine import ask
from holdfast.diagnosis.exits import where
from holdfast.diagnosis.loss_semantics import is_detector, is_one
from holdfast.diagnosis.record_gaps import gap_after
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.rules.probe_absent import reason as why_unseen
from holdfast.diagnosis.series import Series, fall
from holdfast.schema.events import NO_FURTHER_ATTEMPT, as_number
from holdfast.schema.verdicts import Outcome, Proof, Verdict

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

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
    "terminate": "ended by SIGTERM to Holdfast",
    "budget": "the time that the plan gives it was used up",
}
"""Who ended a run that could have gone on -> in words."""
MIN_VALIDATIONS = 3
MIN_FALL = 0.05
"""A loss that falls by less than this part of itself proves nothing, however clear of the noise it is."""
ABOVE_ITS_START = 2.0
"""A loss that leapt and came down again has not fallen while it is this many times the very first one."""
ENOUGH_TO_BE_CONSTANT = 20
"""Fewer equal losses than this prove nothing."""
NEAR_SCORE, NEAR_PART = 0.02, 0.25
"""A score is reproduced within this much, or within this part of itself: files hold averages and half precision."""
CONTRADICTED_BY = {
    "loss-fell": ("loss-diverging", "batches-repeating"),
    "weights-moved": ("weights-frozen",),
    "planned-steps-done": ("steps-missing",),
    "saved-equals-live": ("checkpoint-unfaithful",),
}
"""A warning that still stands at the end, and the proof that cannot hold beside it."""


def verdict(state: RunState) -> Verdict:
    """The verdict on a run whose last attempt is over."""
    attempt = state.attempt
    ended = attempt.ended
    stopped_by = ended.stopped_by if ended is not None else None
    if attempt.signals and attempt.signals[-1].action == NO_FURTHER_ATTEMPT:
        stopped_by = "terminate" if attempt.signals[-1].signal == "SIGTERM" else "user"
    if stopped_by in INTERRUPTED:
        said = INTERRUPTED[stopped_by]
        status = EXIT_STATUS[Outcome.INTERRUPTED] if stopped_by == "user" else TERMINATED
        return Verdict(outcome=Outcome.INTERRUPTED, reason=f"{said} {where(attempt)}", exit_status=status)
    proofs = proofs_of(state)
    against = standing_against_learning(state)
    if against is not None:
        return _verdict(Outcome.NOT_LEARNED, against, proofs)
    if ended is None or ended.code != 0:
        return _verdict(Outcome.FAILED, _why_it_died(attempt), proofs)
    shown = [proof for proof in proofs if proof.positive and proof.answer == "holds"]
    failed = [proof for proof in proofs if proof.answer == "fails"]
    if shown and not failed:
        return _verdict(Outcome.LEARNED, "; ".join(proof.detail for proof in shown), proofs)
    lacking = failed or [proof for proof in proofs if proof.positive]
    return _verdict(Outcome.UNPROVEN, "; ".join(proof.detail for proof in lacking), proofs)


def _verdict(outcome: Outcome, reason: str, proofs: list[Proof]) -> Verdict:
    return Verdict(outcome=outcome, reason=reason, proofs=proofs, exit_status=EXIT_STATUS[outcome])


def standing_against_learning(state: RunState) -> str | None:
    """A fatal finding about learning that the end of the run has not taken back."""
    rules = by_id()
    for finding in reversed(state.attempt.findings):
        rule = rules.get(finding.rule)
        if finding.severity == "fatal" and rule is not None and rule.kind in ("learning", "proof"):
            now = ask(rule, state)
            if now is not None and now.severity == "fatal":
                return now.message
    return None


def _why_it_died(attempt: AttemptState) -> str:
    rules = by_id()
    fatal = [finding for finding in attempt.findings if finding.severity == "fatal" and finding.rule in rules]
    best = max(fatal, key=lambda finding: rules[finding.rule].cause, default=None)
    return best.message if best is not None else f"the attempt ended {where(attempt)}"


def proofs_of(state: RunState) -> list[Proof]:
    return [_unless_contradicted(proof, state) for proof in _proofs(state)]


def _unless_contradicted(proof: Proof, state: RunState) -> Proof:
    if proof.answer in ("holds", "missing"):
        for rule_id in CONTRADICTED_BY.get(proof.name, ()):
            now = ask(by_id()[rule_id], state) if state.attempt.found(rule_id) is not None else None
            if now is not None and now.severity != "note":
                return msgspec.structs.replace(proof, answer="fails", detail=f"{now.message} ({rule_id})")
    return proof


def _proofs(state: RunState) -> list[Proof]:
    return [
        _loss_fell(state),
        _metric_rose(state),
        _metric_above_zero(state),
        _metric_reproduced(state),
        _losses_finite(state),
        _losses_vary(state),
        _weights_moved(state),
        _plan_done(state),
        _saved_is_live(state),
        _checkpoint_reloads(state.attempt),
    ]


def _losses(state: RunState) -> Series:
    """The loss by step; where only a table of epochs was seen, by epoch, all its components together."""
    if state.loss.count or state.loss.nonfinite:
        return state.loss
    by_epoch = Series()
    for validation in history_over(state.validated):
        parts = [as_number(value) for name, value in validation.values.items() if is_training_loss(name)]
        seen = [part for part in parts if part is not None]
        if seen:
            by_epoch.add(validation.step, sum(seen))
    return by_epoch


def _loss_fell(state: RunState) -> Proof:
    losses = _losses(state)
    if not losses.count:
        why, _ = why_unseen(state.attempt)
        unseen = "no loss was seen" + (f" ({why})" if state.attempt.attached is None else "")
        return Proof(name="loss-fell", positive=True, answer="missing", detail=unseen)
    move = fall(losses)
    if move is None:
        few = f"only {losses.count} losses: too few to tell a fall from noise"
        return Proof(name="loss-fell", positive=True, answer="missing", detail=few)
    numbers = f"from {move.early:.4g} to {move.late:.4g} (± {move.noise:.2g})"
    if not is_one(state.attempt):
        said = f"several optimizers step: that a loss moved {numbers} proves nothing"
        return Proof(name="loss-fell", positive=True, answer="missing", detail=said)
    if move.beyond_noise and move.early - move.late < MIN_FALL * abs(move.early):
        little = f"the loss fell {numbers}: as little as a model falls that only loses its first overconfidence"
        return Proof(name="loss-fell", positive=True, answer="missing", detail=little)
    first = losses.first
    leapt = first is not None and 0.0 < ABOVE_ITS_START * first < move.late and not is_detector(state.attempt)
    if move.beyond_noise and leapt:
        worse = f"the loss fell {numbers}, but the untrained model's was {first:.4g}"
        return Proof(name="loss-fell", positive=True, answer="missing", detail=worse)
    if move.beyond_noise:
        return Proof(name="loss-fell", positive=True, answer="holds", detail=f"the loss fell {numbers}")
    return Proof(name="loss-fell", positive=True, answer="missing", detail=f"the loss did not fall clearly: {numbers}")


def _metric_rose(state: RunState) -> Proof:
    """A score that ends well above where it was first measured, in whichever attempt that was."""
    newest = newest_of(state.validated)
    for name in newest.scores() if newest is not None else ():
        values = over_attempts(state.validated, name).values
        if len(values) < MIN_VALIDATIONS or not all(map(math.isfinite, values)):
            continue
        first, late = values[0], values[-max(1, len(values) // 3) :]
        risen = min(late) > first and max(late) > 1.05 * first
        said = f"{name} rose from {first:.4g} to {max(late):.4g} over {len(values)} validations"
        if risen:
            return Proof(name="metric-rose", positive=True, answer="holds", detail=said)
        said = f"{name} did not rise clearly: from {first:.4g} to {values[-1]:.4g}"
        return Proof(name="metric-rose", positive=True, answer="missing", detail=said)
    few = "fewer than three validations with a score were seen"
    return Proof(name="metric-rose", answer="does not apply", detail=few)


def _metric_reproduced(state: RunState) -> Proof:
    """The trainer validated the file that it leaves: is that what it saw while it trained? The best may be of an earlier attempt."""
    metrics = state.attempt.metrics
    final = metrics.final
    for name in metrics.scores() if final is not None else ():
        again = as_number(final.values.get(name)) if final is not None else None
        before = [value for value in over_attempts(state.validated, name).values if math.isfinite(value)]
        if again is None or not before:
            continue
        best = max(before)
        if not best and not again:
            said = f"{name} was 0 while it trained and is 0 of the file that it leaves: there is nothing to reproduce"
            return Proof(name="metric-reproduced", answer="does not apply", detail=said)
        said = f"{name} of the file that it leaves is {again:.4g}; the best while it trained was {best:.4g}"
        near = math.isfinite(again) and abs(again - best) <= max(NEAR_SCORE, NEAR_PART * best)
        return Proof(name="metric-reproduced", answer="holds" if near else "fails", detail=said)
    said = "the checkpoint was not validated again"
    return Proof(name="metric-reproduced", answer="does not apply", detail=said)


def _metric_above_zero(state: RunState) -> Proof:
    newest = next((metrics.latest for metrics in reversed(state.validated) if metrics.latest is not None), None)
    if newest is None:
        return Proof(name="metrics-not-zero", answer="does not apply", detail="no metric was seen")
    latest = newest.values
    scores = {name: as_number(value) for name, value in latest.items() if is_known_score(name)}
    if scores and not any(scores.values()):
        return Proof(name="metrics-not-zero", answer="fails", detail="every metric of the last validation is 0")
    nonfinite = [name for name, value in scores.items() if value is not None and not math.isfinite(value)]
    if nonfinite:
        return Proof(name="metrics-not-zero", answer="fails", detail=f"not finite: {', '.join(nonfinite[:3])}")
    return Proof(name="metrics-not-zero", answer="holds", detail="the last validation's metrics are not all 0")


def _losses_finite(state: RunState) -> Proof:
    loss = state.attempt.loss
    if not loss.count and not loss.nonfinite:
        loss = _losses(state)
    if not loss.count and not loss.nonfinite:
        return Proof(name="losses-finite", answer="missing", detail="no loss was seen")
    if loss.nonfinite_in_a_row:
        return Proof(name="losses-finite", answer="fails", detail=f"not finite since step {loss.nonfinite_since}")
    detail = (
        "every loss was finite" if not loss.nonfinite else f"{loss.nonfinite} losses were not finite, but it recovered"
    )
    return Proof(name="losses-finite", answer="holds", detail=detail)


def _losses_vary(state: RunState) -> Proof:
    losses = _losses(state)
    points = losses.points
    if losses.count < ENOUGH_TO_BE_CONSTANT:
        return Proof(name="losses-not-constant", answer="missing", detail="too few losses")
    if min(point.low for point in points) == max(point.high for point in points):
        return Proof(name="losses-not-constant", answer="fails", detail=f"every loss was {points[0].mean:g}")
    return Proof(name="losses-not-constant", answer="holds", detail="the losses vary")


def _weights_moved(state: RunState) -> Proof:
    """An attempt that went on near the end may be over before its first look: then the one before it has looked."""
    looked = [attempt.weights for attempt in state.ancestry if attempt.weights.weight_updates is not None]
    seen = looked[-1].weight_updates if looked else None
    if seen is None:
        return Proof(name="weights-moved", answer="missing", detail="no weight was looked at")
    stuck = [tensor.name for tensor in seen.stuck if tensor.update_ulps is not None and tensor.update_ulps >= 1.0]
    if stuck:
        detail = f"did not move although its gradient says so: {', '.join(stuck[:3])}"
        return Proof(name="weights-moved", answer="fails", detail=detail)
    most_moved = max(weights.most_moved for weights in looked)
    if not seen.moved and most_moved:
        detail = f"{most_moved} tensors moved; they were at rest when last looked at"
        return Proof(name="weights-moved", answer="holds", detail=detail)
    if not seen.moved:
        without = (
            " and none of them got a gradient"
            if len(seen.no_gradient) + len(seen.zero_gradient) >= seen.checked
            else ""
        )
        detail = f"none of the {seen.checked} weight tensors moved{without}"
        return Proof(name="weights-moved", answer="fails", detail=detail)
    detail = f"{seen.moved} of {seen.checked} tensors moved when last looked at"
    return Proof(name="weights-moved", answer="holds", detail=detail)


def _plan_done(state: RunState) -> Proof:
    attempt = next((each for each in reversed(state.ancestry) if each.epoch is not None), state.attempt)
    done = attempt.epoch is not None and attempt.planned_epochs is not None and attempt.epoch >= attempt.planned_epochs
    gap = gap_after(state.attempt)
    if gap is not None and not done:
        place = f" after step {gap}" if gap else ""
        said = f"not checkable: the record has a gap{place}, while {state.attempt.last_step} steps were made"
        return Proof(name="planned-steps-done", answer="does not apply", detail=said)
    if attempt.planned_epochs is None or attempt.epoch is None:
        return _schedule_done(attempt)
    detail = f"{attempt.epoch} of {attempt.planned_epochs} epochs"
    if attempt.epoch < attempt.planned_epochs:
        return Proof(name="planned-steps-done", answer="missing", detail=f"{detail}: it ended early by itself")
    return Proof(name="planned-steps-done", answer="holds", detail=detail)


def _schedule_done(attempt: AttemptState) -> Proof:
    """A schedule that was made for so many steps says how much was planned."""
    schedule = next((s for s in attempt.rates.schedules.values() if s.planned is not None and s.done is not None), None)
    if schedule is None or schedule.planned is None or schedule.done is None:
        said = "the command does not say how much it plans"
        return Proof(name="planned-steps-done", answer="does not apply", detail=said)
    detail = f"{schedule.scheduler} was made for {schedule.planned} steps, {schedule.done} were done"
    answer: Literal["holds", "missing"] = "holds" if schedule.done >= schedule.planned else "missing"
    return Proof(name="planned-steps-done", answer=answer, detail=detail)


def _checkpoint_reloads(attempt: AttemptState) -> Proof:
    tried = [reloaded for reloaded in attempt.reloaded.values() if reloaded.loads is not None]
    if not tried:
        for unread in attempt.reloaded.values():
            detail = f"{unread.path} was not read back: {unread.why}"
            return Proof(name="checkpoint-reloads", answer="does not apply", detail=detail)
        detail = "no checkpoint was saved" if not attempt.saves.count else "no saved file could be read back"
        return Proof(name="checkpoint-reloads", answer="does not apply", detail=detail)
    for reloaded in reversed(tried):
        if not reloaded.loads:
            detail = f"{reloaded.path} does not load: {reloaded.why}"
            return Proof(name="checkpoint-reloads", answer="fails", detail=detail)
        if reloaded.nonfinite:
            detail = f"{reloaded.path} holds values that are not finite: {', '.join(reloaded.nonfinite[:3])}"
            return Proof(name="checkpoint-reloads", answer="fails", detail=detail)
    detail = f"{tried[-1].path} loads, {tried[-1].tensors} tensors, all finite"
    there = max(reloaded.of for reloaded in tried)
    if there > len(tried):
        detail += f"; {len(tried)} of {there} checkpoints were read back, the newest"
    return Proof(name="checkpoint-reloads", answer="holds", detail=detail)


def _saved_is_live(state: RunState) -> Proof:
    compared = [saved for each in state.ancestry for saved in each.saves.by_path.values() if saved.compared]
    if not compared:
        return Proof(name="saved-equals-live", answer="does not apply", detail="no saved weights could be compared")
    newest = compared[-1]
    if newest.nonfinite:
        return Proof(name="saved-equals-live", answer="fails", detail=f"{newest.path} holds values that are not finite")
    if newest.matches in ("equal", "cast", "average", "earlier", "near"):
        return Proof(
            name="saved-equals-live", answer="holds", detail=f"{newest.path} is what was live ({newest.matches})"
        )
    return Proof(name="saved-equals-live", answer="missing", detail=f"{newest.path} differs from the live weights")
