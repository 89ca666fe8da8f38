"""An epoch, or a long series of steps, takes many times as long as before.

**What it means.** Training continues, but extremely slowly. For example, an epoch that used to take 15 minutes now
takes half a day. The finding includes machine statistics for that period, which help to identify the cause.

**Why it happens.** Common causes are swapping, slow data loading, another program that uses the CPU, an evaluation or a
save that takes longer than before, sleep, and throttling (heat or battery power). On a Mac, swapping is often caused by
memory of the GPU driver, which is not part of the resident memory of the process.

**What to do.** The finding names the cause if it can be identified:

- The machine swapped: use a smaller batch with more gradient accumulation, close other programs, and turn off dataset
  caching (`cache=False`).
- Data loading was slow: use more `DataLoader` workers, cache the data on a local disk, and check the disk or network
  that the data comes from.
- Other programs were busy: find them with `top`, and stop or postpone them.
- There was one long pause: check what your script does at that step (saving, evaluation, plotting).
- The machine slept: keep the lid open and the charger connected.
- Saving took a long time: check the disk that checkpoints are written to, or save less often.
- The cause is unknown: monitor memory, swap and the CPU temperature during the next epoch, or resume from the last
  checkpoint in a new process.

**When it is reported.** An epoch is reported if it takes at least three times the median of at least two previous
epochs (the first is not counted) and at least 10 s longer. The epoch time does not include evaluation, saving, or time
during which the process was suspended or the machine slept.

If there are no epochs, or if an epoch is long, Holdfast divides the steps into windows of at least one minute. It
compares the last two windows with the earlier ones. The first window is ignored, and at least three earlier windows are
required. An evaluation is compared with earlier evaluations in the same way; at least three are required.

**Severity.** The severity is `warn` if the cause is known, or if an epoch took five times as long for no visible
reason. It is `note` in these cases:

- The machine slept, checkpoints were being saved, or one long pause explains the difference.
- Another program caused it, and the difference is less than one minute.
- Each step may involve more work than before (longer text, larger images, layers that are no longer frozen).

If only the times of epochs are known, as in a log that Holdfast did not write, the cause cannot be identified, and the
finding says so.

Sources: ultralytics#24065, ultralytics#22621; in one reported case, the time per epoch rose from 979 s to 39,322 s, and
the cause was never found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.timing import merge_periods
from holdfast.diagnosis.remedy_ids import SWAPPING
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState, Severity
from holdfast.diagnosis.slowdown import Cause, Slowdown, find_causes
from holdfast.schema import events
from holdfast.schema.units import duration
from holdfast.testing.histories import sample, trains
from holdfast.testing.resources import epoch, epochs

if TYPE_CHECKING:
    from holdfast.diagnosis.aggregators.timing import Timing

LIMITS = {
    "times": 3.0,
    "times_for_no_reason": 5.0,
    "least_seconds": 10.0,
    "load_seconds": 60.0,
    "swap_mib": 256.0,
    "available_part": 0.03,
    "explains": 0.5,
    "own_part": 0.7,
    "others_load": 1.0,
}


def judge(state: RunState) -> Finding | None:
    pace = state.attempt.pace
    limits = state.get_limits("epoch-time-blowup", LIMITS)
    slow = _slow_epoch(pace, limits) or _slow_steps(pace, limits) or _slow_evaluation(pace, limits)
    if slow is None:
        return _report_pause_between_epochs(pace, limits)
    known = find_causes(slow, state, limits)
    if not known and not slow.same_work and not _takes_too_long(pace, limits):
        return None
    return Finding(
        severity=_severity(slow, known, limits),
        message=f"{slow.what} took {duration(slow.took)}, {slow.times:.1f} times the usual {duration(slow.usual)}: "
        + (" and ".join(cause.message for cause in known[:2]) if known else _describe_unknown_cause(slow))
        + ".",
        evidence=[
            f"{slow.took:.1f} s; median before: {slow.usual:.1f} s",
            *(cause.evidence for cause in known),
            *([] if known else [_describe_measurements(slow)]),
        ],
        remedies=[remedy for cause in known for remedy in cause.remedies]
        or [
            "monitor memory, swap and the CPU temperature during the next epoch (holdfast run records memory and swap)",
            "keep the machine awake and plugged in",
            "resume from the last checkpoint in a new process: this frees memory that has accumulated in a driver or a cache",
        ],
        data={"cause": known[0].name} if known else {},
    )


def _severity(slow: Slowdown, known: list[Cause], limits: Limits) -> Severity:
    if not known:
        return "warn" if slow.same_work and slow.times >= limits["times_for_no_reason"] else "note"
    if known[0].name == "pause" or (known[0].name == "load" and slow.more < limits["load_seconds"]):
        return "note"
    return "warn"


def _describe_unknown_cause(slow: Slowdown) -> str:
    if slow.now.first_sample is None:
        return "the log does not show the cause; the machine may have swapped (for example, because the memory of the GPU driver keeps growing) or slept"
    if not slow.same_work:
        return "the steps themselves are slower; each step may have more to do, or the machine may be throttling"
    return (
        "the steps themselves are slower, and neither swap, data loading nor other programs explain it; the machine may be "
        "throttling (heat, battery), the memory of the GPU driver may be growing, or each step may have more to do"
    )


def _describe_measurements(slow: Slowdown) -> str:
    now = slow.now
    if now.first_sample is None:
        return "memory, load and sleep were not measured in that time"
    others = f"{now.others_load:.1f}" if now.others_load is not None else "unknown"
    waited = f"waiting for data {now.data_wait / now.step_seconds:.0%}" if now.step_seconds else "data wait unknown"
    return f"in that time: {waited}, read from swap {now.swapped_in >> 20} MiB, load of other programs {others}"


def _is_slow(took: float, usual: float | None, limits: Limits) -> bool:
    return bool(usual) and took >= limits["times"] * (usual or 0.0) and took - (usual or 0.0) >= limits["least_seconds"]


def _slow_epoch(pace: Timing, limits: Limits) -> Slowdown | None:
    last = pace.epochs[-1] if pace.epochs else None
    if last is None or last.usual is None or not _is_slow(last.seconds, last.usual, limits):
        return None
    return Slowdown(f"Epoch {last.epoch}", last.seconds, last.usual, last, list(pace.epochs)[1:-1], same_work=True)


def _takes_too_long(pace: Timing, limits: Limits) -> bool:
    """Return True if there are no epochs to compare, or if the current one is already far too long.

    The end of an epoch tells more than its steps, but waiting half a day for it is too long.
    """
    return pace.usual_epoch is None or pace.under_way.step_seconds > limits["times_for_no_reason"] * pace.usual_epoch


def _slow_steps(pace: Timing, limits: Limits) -> Slowdown | None:
    """Compare two windows in a row, so that a single slow minute does not count."""
    if len(pace.windows) < 2:
        return None
    last, before = pace.windows[-1], pace.windows[-2]
    if last.usual is None or min(last.step_time, before.step_time) < limits["times"] * last.usual:
        return None
    now = merge_periods(before, last)
    what = f"{now.steps} steps (to step {now.last_step})"
    return Slowdown(what, now.step_seconds, last.usual * now.steps, now, list(pace.windows)[1:-2], same_work=False)


def _slow_evaluation(pace: Timing, limits: Limits) -> Slowdown | None:
    last = pace.evaluations[-1] if pace.evaluations else None
    if last is None or last.usual is None or not _is_slow(last.seconds, last.usual, limits):
        return None
    what = f"The evaluation at step {last.step}"
    return Slowdown(what, last.seconds, last.usual, pace.under_way, list(pace.epochs)[1:], same_work=False)


def _report_pause_between_epochs(pace: Timing, limits: Limits) -> Finding | None:
    """Report a long time between the ends of two epochs that was not spent on training."""
    last = pace.epochs[-1] if pace.epochs else None
    if last is None or last.wall is None or last.usual_wall is None or not _is_slow(last.wall, last.usual_wall, limits):
        return None
    more = last.wall - last.usual_wall
    for kind, message in (("slept", "the machine slept"), ("saving", "checkpoints were being saved")):
        seconds = last.paused(kind)
        if seconds >= limits["explains"] * more:
            return Finding(
                severity="note",
                message=(
                    f"Epoch {last.epoch} took {duration(last.wall)} of wall time, {last.wall / last.usual_wall:.1f} times "
                    f"the usual {duration(last.usual_wall)}: {message} for {duration(seconds)} of it; training itself took "
                    f"{duration(last.seconds)}."
                ),
                evidence=[f"{last.wall:.0f} s since the end of the previous epoch; {seconds:.0f} s of it: {message}"],
                remedies=[
                    "keep the lid open and the charger connected during a run"
                    if kind == "slept"
                    else "check the disk that checkpoints are written to, or save less often"
                ],
            )
    return None


def _epochs(
    *seconds: float, swap: float = 0.0, wait: float = 0.1, load: float = 0.2, own: float = 1.0
) -> list[events.AnyEvent]:
    """Return epochs of 100 steps with all measurements. `swap`, `wait`, `load` and `own` apply to the last epoch."""
    history, now, cpu, step = trains(), 0.0, 0.0, 0
    for number, epoch_seconds in enumerate(seconds, 1):
        last = number == len(seconds)
        for part in range(10):
            rate = own if last else 1.0
            cpu += rate * epoch_seconds / 10
            waited = (wait if last else 0.1) * epoch_seconds / 10
            steps = events.Steps(
                at=now + (part + 1) * epoch_seconds / 10,
                first=step + 1,
                last=step + 10,
                seconds=epoch_seconds / 10,
                slowest=epoch_seconds / 80,
                data_wait=waited,
            )
            step += 10
            swapped = swap * (part + 1) if last else 0.0
            measured = sample(
                steps.at,
                load=rate + (load if last else 0.2),
                cpu=cpu,
                swap=min(24.0, swapped),
                swap_in=swapped,
                available=0.3 if swapped else 10.0,
            )
            history += [steps, measured]
        now += epoch_seconds
        history.append(epoch(number, now, epoch_seconds, step=step, batches=100))
    return history


def _windows(*step_times: float, swap: tuple[events.AnyEvent, ...] = ()) -> list[events.AnyEvent]:
    """Return a loop without epochs, about 80 s at each step time."""
    history, now, step = trains(), 0.0, 0
    for number, step_time in enumerate(step_times):
        for _ in range(max(5, round(80.0 / step_time))):
            step += 1
            now += step_time
            history.append(events.Step(at=now, step=step, seconds=step_time, loss=1.0))
        history.append(sample(now, load=1.0, cpu=now, swap_in=0.0))
        history += swap[number : number + 1]
    return history


_SWAPPED = (
    sample(3600.0, available=0.4, swap=9.0, swap_in=1.0),
    sample(3700.0, available=0.3, swap=24.0, swap_in=90.0),
)
_SWAPS = (*[sample(10.0)] * 8, *_SWAPPED, _SWAPPED[-1])

RULE = Rule(
    kind="resources",
    on=(events.Sample, events.Epoch, events.Evaluation),
    judge=judge,
    limits=LIMITS,
    restarts_while_running=True,
    charts=("pace", "epochs"),
    remedies_by_cause={"swap": SWAPPING, "data": ("more-workers", "cache-on-disk")},
    cases=lambda: [
        Case("a log that contains only epoch times", "warn", epochs(1100, 979, 981, 975, 979, 39322)),
        Case("swapping", "warn", _epochs(90, 60, 60, 60, 600, swap=4.0, own=0.2)),
        Case("waiting for data", "warn", _epochs(90, 60, 60, 60, 300, wait=0.8)),
        Case("another program, for a long time", "warn", _epochs(90, 60, 60, 60, 300, load=4.0, own=0.3)),
        Case("another program, for a short time", "note", _epochs(15, 12, 12, 12, 48, load=4.0, own=0.3)),
        Case("no visible reason", "warn", _epochs(90, 60, 60, 60, 600)),
        Case("somewhat slower, as after unfreezing layers", "note", _epochs(90, 60, 60, 60, 200)),
        Case(
            "the machine slept, and the clock of the process stopped",
            "note",
            _epochs(90, 60, 60, 60, 60),
            events.Slept(at=3900.0, seconds=3600.0),
            epoch(6, 3990.0, 60.0),
        ),
        Case(
            "the machine slept, and the clock of the process kept running",
            "note",
            _epochs(90, 60, 60, 60, 60),
            events.Slept(at=3900.0, seconds=3600.0),
            epoch(6, 3990.0, 3660.0),
        ),
        Case(
            "one pause within an epoch",
            "note",
            _epochs(90, 60, 60, 60, 60),
            (events.Step(at=330.0 + n, step=500 + n, seconds=0.6) for n in range(1, 100)),
            events.Step(at=540.0, step=600, seconds=150.0),
            epoch(6, 540.0, 210.0, step=600, batches=100),
        ),
        Case("steps of a loop without epochs, no visible reason", "note", _windows(*[4.0] * 8, *[20.0] * 3)),
        Case("steps of a loop without epochs, with swapping", "warn", _windows(*[4.0] * 8, *[20.0] * 3, swap=_SWAPS)),
        Case("a single slow minute", None, _windows(*[4.0] * 8, 20.0, *[4.0] * 4)),
        Case("the first epoch is slow", None, epochs(5000, 60, 60, 60, 60)),
        Case("the second epoch is slow too", None, epochs(50, 400, 60, 60, 60)),
        Case("only the first epoch was fast", None, epochs(50, 400, 410, 400)),
        Case("short epochs", None, epochs(1.0, 1.0, 1.1, 0.9, 9.0)),
        Case("noise", None, epochs(80, 60, 75, 55, 100, 62, 120, 58)),
        Case(
            "suspended by the user",
            None,
            _epochs(90, 60, 60, 60, 60),
            events.Continued(at=900.0, seconds=580.0),
            epoch(6, 970.0, 640.0),
        ),
        Case(
            "a long evaluation within an epoch",
            None,
            _epochs(90, 60, 60, 60, 60),
            events.Evaluation(at=900.0, step=510, seconds=500.0, fetches=400),
            epoch(6, 960.0, 560.0),
        ),
        Case("four times as many batches", None, _epochs(90, 60, 60, 60, 60), epoch(6, 570.0, 240.0, batches=400)),
    ],
)
