"""Does the device have one of the faults that are publicly known?

**What it asks.** Programs of a few operators, one for each known fault (F01 scalar writes, F04 counts of boolean indices, F11 long products, F12
gradients through expanded tensors, F13 writes into tensors with gaps, F14 others), in milliseconds, on the device that the training uses, or
on the one that was named (`holdfast check --device mps`).

**Why.** They are what trainings on Apple's GPUs have really died of, or learned nothing from. They ask the device itself, where versions only
hint at it.

**What to do.** Install a newer torch, or use another device. A training that does not use the operator is not harmed by it:
device-operators tells which it uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.case_dry_runs import on_cpu, on_mps, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, device_kind, finding
from holdfast.preflight.checks.interpreter import Reply
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run
from holdfast.probe.holdfast_probe.env_scripts import canaries as trial
from holdfast.probe.holdfast_probe.op_check import canaries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "device-canaries"
CANARIES = Path(canaries.__file__)
TRIAL = Path(trial.__file__)


def run(context: CheckContext) -> Answer:
    """By the dry run where there is one, since only it knows the device; else on the device that was named."""
    if context.command or context.plan is not None:
        dry_run = get_dry_run(context)
        told = [(str(line["device"]), line["results"]) for line in dry_run.of("canaries")]
        if told:
            return _answer(context, told)
        if dry_run.steps:
            return Answer("nothing to ask: everything ran on the CPU")
    kind = device_kind(context.device)
    if kind in ("", "auto", "cpu"):
        raise NotChecked("no device other than the CPU is named: --device mps, --device cuda")
    if context.interpreter is None or context.interpreter.torch is None:
        raise NotChecked(context.no_interpreter or "there is no torch to ask")
    device = {"cuda": "cuda:0"}.get(kind, kind)
    reply = context.run_program(TRIAL, device, stdin=CANARIES.read_text(), seconds=60.0)
    results = next((line["results"] for line in reply.lines if "results" in line), None)
    if results is None:
        raise NotChecked(f"{device} could not be asked: {reply.last_line or reply.failure or 'it printed nothing'}")
    if all(str(result["wrong"] or "").startswith("raised") for result in results):
        raise NotChecked(f"nothing can be computed on {device}: {results[0]['wrong']}")
    return _answer(context, [(device, results)])


def _answer(context: CheckContext, told: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Answer:
    wrong = [(device, result) for device, results in told for result in results if result["wrong"]]
    asked = sum(len(results) for _, results in told)
    message = (
        f"{asked - len(wrong)} of {asked} programs for known faults come out right on {', '.join(d for d, _ in told)}"
    )
    return Answer(message, tuple(_found(context, device, result) for device, result in wrong))


def _found(context: CheckContext, device: str, result: Mapping[str, Any]) -> Finding:
    uses = bool(context.command) or context.plan is not None or context.trains_on(device_kind(device))
    return finding(
        ID,
        "fatal" if uses else "warn",
        f"{device} has the fault {result['id']}: {result['wrong']}.",
        evidence=[str(result["about"]), f"canary {result['canary']}"],
        remedies=["install the newest torch, and check again", "train on another device: device=cpu"],
    )


def _results(wrong: str | None = None) -> list[dict[str, Any]]:
    return [
        {"id": "F01", "canary": "scalar_writes", "about": "zeros(3) (pytorch#122016)", "wrong": wrong},
        {"id": "F12", "canary": "expanded_gradients", "about": "gradients (pytorch#180201)", "wrong": None},
    ]


def _line(wrong: str | None = None) -> dict[str, Any]:
    return {"event": "canaries", "device": "mps:0", "results": _results(wrong)}


_LOST = "zeros(3) with 1 and 3 written gives [0.0, 3.0, 3.0] instead of [0.0, 1.0, 3.0]"

CHECK = Check(
    id=ID,
    kind="device",
    run=run,
    page=__doc__ or "",
    seconds=SECONDS,
    cases=(
        Case("a sound device", on_mps(recorded_dry_run(_line())), "passed"),
        Case("the first field report: scalar writes", on_mps(recorded_dry_run(_line(_LOST))), "fatal"),
        Case("all on the CPU", on_cpu(recorded_dry_run()), "passed"),
        Case("only a device", mac(reply=Reply(({"results": _results()},))), "passed"),
        Case("only a device, and it lies", mac(reply=Reply(({"results": _results(_LOST)},))), "fatal"),
        Case("only a device that crashes", mac(reply=Reply((), -6, "Abort trap")), "not checked"),
        Case(
            "a device that is not there",
            linux(
                device="mps", reply=Reply(({"results": [{**_results()[0], "wrong": "raised RuntimeError: no MPS"}]},))
            ),
            "not checked",
        ),
        Case("nothing is named", linux(device=None), "not checked"),
    ),
)
