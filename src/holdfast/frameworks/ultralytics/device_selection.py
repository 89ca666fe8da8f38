"""`device = "auto"`: selects the fastest device that computes correctly, and explains why the others were not selected.

Each device that the training's own torch sees is tested for known bugs (canaries: a few operators each, in milliseconds), and those that
pass train a few batches. Measuring and ranking are separate. If only one device is left, nothing has to be measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks.base import DeviceChoice
from holdfast.frameworks.ultralytics.cost_estimate import find_largest_stage, merge_settings
from holdfast.frameworks.ultralytics.short_run import measure
from holdfast.preflight.checks.context import build_context
from holdfast.probe.holdfast_probe.env_scripts import canaries as canary_runner
from holdfast.probe.holdfast_probe.op_check import canaries
from holdfast.schema.devices import device_kind, parse_device
from holdfast.schema.units import duration
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.frameworks.ultralytics.short_run import Measurement
    from holdfast.preflight.checks.interpreter import Reply
    from holdfast.schema.plan import Plan

CANARY_RUNNER = Path(canary_runner.__file__)
CANARIES = Path(canaries.__file__)
CANARIES_S = 60.0
TRIAL_S = 120.0
"""For each device."""


@dataclass(frozen=True)
class Candidate:
    device: str
    problem: str = ""
    """Why it cannot be used."""
    batch_s: float | None = None
    """Seconds per batch; None if nothing had to be measured."""


def needs_selection(plan: Plan) -> bool:
    """Return whether the plan names no device, or "auto"."""
    return all(merge_settings(plan, stage).get("device") in (None, "", "auto") for stage in stages_of(plan))


def choose(
    plan: Plan, *, notify: Callable[[str], None] = lambda _: None, trial: Callable[..., Measurement] = measure
) -> DeviceChoice:
    """Select a device for an Ultralytics plan. This starts processes and may take minutes if there are several devices."""
    context, client = build_context(plan=plan, device="auto")
    try:
        torch = context.interpreter.torch if context.interpreter is not None else None
        if torch is None:
            why = context.interpreter.no_torch if context.interpreter is not None else context.no_interpreter
            return DeviceChoice(None, [f"no device was tested: {why}"])
        wanted, absent = order_devices(plan.policy.devices, torch.devices)
        if not any(parse_device(device).kind.is_accelerator for device in wanted):
            return rank([*absent, *map(Candidate, wanted)])

        def test_device(device: str) -> str:
            if not parse_device(device).kind.is_accelerator:
                return ""
            notify(f"testing {device} for known bugs")
            return find_fault(
                context.run_program(CANARY_RUNNER, device, stdin=CANARIES.read_text(), seconds=CANARIES_S), device
            )

        found = [Candidate(device, test_device(device)) for device in wanted]
    finally:
        if client is not None:
            client.close()
    usable = [candidate for candidate in found if not candidate.problem]
    if len(usable) > 1:
        stage = stage_plan(plan, stages_of(plan)[find_largest_stage(plan)])
        timed = {candidate.device: _time_device(stage, candidate.device, notify, trial) for candidate in usable}
        found = [timed.get(candidate.device, candidate) for candidate in found]
    return rank([*absent, *found])


def order_devices(requested: Sequence[str], seen: Sequence[str]) -> tuple[list[str], list[Candidate]]:
    """Return the devices to try in the requested order, and those that do not exist. Of several devices of a type, only the first is tried."""
    first = {device_kind(device): device for device in reversed(seen)}
    if not requested:
        return [device for device in seen if first[device_kind(device)] == device], []
    present, absent = [], []
    for request in requested:
        named = parse_device(request)
        device = next((name for name in seen if parse_device(name) == named), None)
        if device is None:
            name = named.names[0] if str(request).isdigit() else str(request)
            absent.append(Candidate(name, "torch does not see it"))
        elif device not in present:
            present.append(device)
    return present or ["cpu"], absent


def find_fault(reply: Reply, device: str) -> str:
    """Return what the device computed wrong, as the end of a sentence; empty if everything was correct."""
    results = next((line["results"] for line in reply.lines if line.get("device") == device), None)
    if results is None:
        why = reply.failure or "there is no result for it"
        return f"it could not be tested: {why}{f' ({reply.last_line})' if reply.last_line else ''}"
    wrong = [candidate for candidate in results if candidate["wrong"]]
    if not wrong:
        return ""
    first = wrong[0]
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"it gets {first['canary'].replace('_', ' ')} wrong ({first['id']}): {first['wrong']}{more}"


def _time_device(
    stage: Plan, device: str, notify: Callable[[str], None], trial: Callable[..., Measurement]
) -> Candidate:
    notify(f"training a few batches on {device}")
    candidate = trial(stage, seconds=TRIAL_S, brief=True, device=device)
    if candidate.failed:
        return Candidate(device, f"a short run failed: {candidate.failed}")
    if candidate.suspect:
        return Candidate(device, f"a short run did not learn: {candidate.suspect}")
    return Candidate(device, batch_s=candidate.wall.batch)


def rank(candidates: Sequence[Candidate]) -> DeviceChoice:
    """Return the fastest usable candidate; the first one if several are equal."""
    usable = [candidate for candidate in candidates if not candidate.problem]
    rejected = [f"{candidate.device}: {candidate.problem}" for candidate in candidates if candidate.problem]
    if not usable:
        return DeviceChoice(None, rejected)
    best = min(usable, key=lambda candidate: candidate.batch_s if candidate.batch_s is not None else 0.0)
    why = "the only usable device" if len(usable) == 1 else f"the fastest, {_format_batch(best)}"
    slower = [
        f"{candidate.device}: slower, {_format_batch(candidate)}" for candidate in usable if candidate is not best
    ]
    return DeviceChoice(best.device.removeprefix("cuda:"), [f"{best.device}: {why}", *slower, *rejected])


def _format_batch(candidate: Candidate) -> str:
    seconds = candidate.batch_s or 0.0
    return f"{duration(seconds) if seconds >= 1.0 else f'{1000 * seconds:.0f} ms'} per batch"
