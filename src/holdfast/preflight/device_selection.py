"""`device = "auto"`: the fastest device that told the truth, and why it was not another.

Each device that the training's own torch sees is asked what is known to go wrong on some (canaries: a few operators each, in milliseconds),
and those that answer rightly train a few batches. What is measured and how it is ranked are apart; where only one device is left, nothing
has to be measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import duration
from holdfast.preflight.checks.check import device_kind
from holdfast.preflight.checks.context import build_context
from holdfast.preflight.cost_estimate import find_largest_stage, settings_of
from holdfast.preflight.short_run import measure
from holdfast.probe.holdfast_probe.env_scripts import canaries as asking
from holdfast.probe.holdfast_probe.op_check import canaries
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.preflight.checks.interpreter import Reply
    from holdfast.preflight.short_run import Measurement
    from holdfast.schema.plan import Plan

CANARY_RUNNER = Path(asking.__file__)
CANARIES = Path(canaries.__file__)
CANARIES_S = 60.0
TRIAL_S = 120.0
"""For each device."""


@dataclass(frozen=True)
class Choice:
    device: str | None
    """As Ultralytics takes it; None where there is none that can be trusted."""
    message: list[str]
    """Why this one, and why not each other."""


@dataclass(frozen=True)
class Candidate:
    device: str
    problem: str = ""
    """Why it cannot be taken."""
    batch_s: float | None = None
    """Seconds for a batch; None where nothing had to be measured."""


def needs_selection(plan: Plan) -> bool:
    """Nobody named a device, or "auto" stands for one."""
    return all(settings_of(plan, stage).get("device") in (None, "", "auto") for stage in stages_of(plan))


def choose(
    plan: Plan, *, notify: Callable[[str], None] = lambda _: None, trial: Callable[..., Measurement] = measure
) -> Choice:
    """For a plan of Ultralytics. It starts processes, and may take minutes where there are several devices."""
    context, asker = build_context(plan=plan, device="auto")
    try:
        torch = context.interpreter.torch if context.interpreter is not None else None
        if torch is None:
            why = context.interpreter.no_torch if context.interpreter is not None else context.no_interpreter
            return Choice(None, [f"no device was tried: {why}"])
        wanted, absent = ordered(plan.policy.devices, torch.devices)
        if wanted == ["cpu"]:
            return rank([*absent, Candidate("cpu")])

        def told(device: str) -> str:
            notify(f"asking {device} what is known to go wrong")
            return find_fault(
                context.run_program(CANARY_RUNNER, device, stdin=CANARIES.read_text(), seconds=CANARIES_S), device
            )

        found = [Candidate(device, "" if device == "cpu" else told(device)) for device in wanted]
    finally:
        if asker is not None:
            asker.close()
    honest = [one for one in found if not one.problem]
    if len(honest) > 1:
        stage = stage_plan(plan, stages_of(plan)[find_largest_stage(plan)])
        timed = {one.device: _timed(stage, one.device, notify, trial) for one in honest}
        found = [timed.get(one.device, one) for one in found]
    return rank([*absent, *found])


def ordered(wished: Sequence[str], seen: Sequence[str]) -> tuple[list[str], list[Candidate]]:
    """Devices to try, in the order that was wished for, and those that are not there. Of several of a kind, the first."""
    first = {device_kind(device): device for device in reversed(seen)}
    if not wished:
        return [device for device in seen if first[device_kind(device)] == device], []
    there, absent = [], []
    for wish in wished:
        name = f"cuda:{wish}" if str(wish).isdigit() else str(wish)
        device = name if name in seen else first.get(name)
        if device is None:
            absent.append(Candidate(name, "torch does not see it"))
        elif device not in there:
            there.append(device)
    return there or ["cpu"], absent


def find_fault(reply: Reply, device: str) -> str:
    """What the device got wrong, in a sentence's end; empty where it told the truth."""
    results = next((line["results"] for line in reply.lines if line.get("device") == device), None)
    if results is None:
        how = reply.failure or "nothing was said of it"
        return f"it could not be asked: {how}{f' ({reply.last_line})' if reply.last_line else ''}"
    wrong = [one for one in results if one["wrong"]]
    if not wrong:
        return ""
    first = wrong[0]
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"it gets {first['canary'].replace('_', ' ')} wrong ({first['id']}): {first['wrong']}{more}"


def _timed(stage: Plan, device: str, notify: Callable[[str], None], trial: Callable[..., Measurement]) -> Candidate:
    notify(f"training a few batches on {device}")
    one = trial(stage, seconds=TRIAL_S, brief=True, device=device)
    if one.failed:
        return Candidate(device, f"a short trial did not run: {one.failed}")
    if one.suspect:
        return Candidate(device, f"a short trial did not learn: {one.suspect}")
    return Candidate(device, batch_s=one.wall.batch)


def rank(candidates: Sequence[Candidate]) -> Choice:
    """The fastest that can be taken; of equals, the first."""
    honest = [one for one in candidates if not one.problem]
    against = [f"{one.device}: {one.problem}" for one in candidates if one.problem]
    if not honest:
        return Choice(None, against)
    best = min(honest, key=lambda one: one.batch_s if one.batch_s is not None else 0.0)
    why = "the only device that can be taken" if len(honest) == 1 else f"the fastest, {_batch(best)}"
    slower = [f"{one.device}: slower, {_batch(one)}" for one in honest if one is not best]
    return Choice(best.device.removeprefix("cuda:"), [f"{best.device}: {why}", *slower, *against])


def _batch(one: Candidate) -> str:
    seconds = one.batch_s or 0.0
    return f"{duration(seconds) if seconds >= 1.0 else f'{1000 * seconds:.0f} ms'} a batch"
