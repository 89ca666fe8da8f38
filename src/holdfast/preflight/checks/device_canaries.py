"""Does the device have one of the publicly known bugs?

**What it checks.** Runs a small test program for each of these known bugs:

- writes of single elements that change the wrong element
- wrong results when boolean indexing operations run in quick succession
- matrix products over 32,767 or more terms that read out of bounds
- zero or corrupt gradients through expanded tensors
- lost writes to non-contiguous tensors
- wrong results of `argmax`, `argsort`, `cumsum` and `fill_`

docs/op_check.md lists them with their sources. Each program takes milliseconds. It runs on the device that your script uses or, without
a training command, on the device given by `--device`.

**Why.** These bugs made real training runs on Apple GPUs crash or learn nothing. The programs test the device itself, whereas version
numbers are only a hint.

**What to do.** Install a newer torch, or use a different device. A script that does not use the affected operator is not affected:
device-operators reports which operators in your script compute wrong results.

**When it is not checked.** The result is `not checked` if there is no training command, and `--device` is `cpu` or `auto`, or is not
given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.case_dry_runs import on_cpu, on_mps
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, finding
from holdfast.preflight.checks.interpreter import Reply
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run
from holdfast.probe.holdfast_probe.env_scripts import canaries as runner
from holdfast.probe.holdfast_probe.op_check import canaries
from holdfast.schema.devices import device_kind, parse_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.schema.verdicts import Finding

CANARIES = Path(canaries.__file__)
RUNNER = Path(runner.__file__)


def run(context: CheckContext) -> Answer:
    """Use the results of the dry run if there is a training command, since only the dry run knows its device; else test the requested device."""
    if context.command or context.plan is not None:
        dry_run = get_dry_run(context)
        reports = [(str(line["device"]), line["results"]) for line in dry_run.select("canaries")]
        if reports:
            return _make_answer(context, reports)
        if dry_run.steps:
            return Answer("nothing to test: everything ran on the CPU")
    requested = parse_device(context.device)
    if not requested.kind.is_accelerator:
        raise NotChecked("no accelerator was requested: use --device mps or --device cuda")
    if context.interpreter is None or context.interpreter.torch is None:
        raise NotChecked(context.no_interpreter or "torch is not available")
    device = requested.names[0]
    reply = context.run_program(RUNNER, device, stdin=CANARIES.read_text(), seconds=60.0)
    results = next((line["results"] for line in reply.lines if "results" in line), None)
    if results is None:
        raise NotChecked(f"{device} could not be tested: {reply.last_line or reply.failure or 'it printed nothing'}")
    if all(str(result["wrong"] or "").startswith("raised") for result in results):
        raise NotChecked(f"nothing can be computed on {device}: {results[0]['wrong']}")
    return _make_answer(context, [(device, results)])


def _make_answer(context: CheckContext, reports: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Answer:
    wrong = [(device, result) for device, results in reports for result in results if result["wrong"]]
    total = sum(len(results) for _, results in reports)
    message = (
        f"{total - len(wrong)} of {total} tests for known bugs passed on {', '.join(device for device, _ in reports)}"
    )
    return Answer(message, tuple(_make_finding(context, device, result) for device, result in wrong))


def _make_finding(context: CheckContext, device: str, result: Mapping[str, Any]) -> Finding:
    uses = bool(context.command) or context.plan is not None or context.trains_on(device_kind(device))
    return finding(
        "fatal" if uses else "warn",
        f"{device} has a known bug: {result['wrong']}.",
        evidence=[str(result["about"]), f"test {result['canary']}, bug {result['id']} in docs/op_check.md"],
        remedies=["install the newest torch, and check again", "train on a different device: device=cpu"],
    )


def _record_results(wrong: str | None = None) -> list[dict[str, Any]]:
    return [
        {"id": "F01", "canary": "scalar_writes", "about": "zeros(3) (pytorch#122016)", "wrong": wrong},
        {"id": "F12", "canary": "expanded_gradients", "about": "gradients (pytorch#180201)", "wrong": None},
    ]


def _record_line(wrong: str | None = None) -> dict[str, Any]:
    return {"event": "canaries", "device": "mps:0", "results": _record_results(wrong)}


_LOST = "zeros(3) with 1 and 3 written gives [0.0, 3.0, 3.0] instead of [0.0, 1.0, 3.0]"

CHECK = Check(
    kind="device",
    run=run,
    seconds=SECONDS,
    cases=lambda: (
        Case("a script on MPS, no known bug", on_mps(_record_line()), "passed"),
        Case("a script on MPS, writes of single elements are lost", on_mps(_record_line(_LOST)), "fatal"),
        Case("a script that uses only the CPU", on_cpu(), "passed"),
        Case("no command, a device without known bugs", mac(reply=Reply(({"results": _record_results()},))), "passed"),
        Case(
            "no command, a device with a known bug", mac(reply=Reply(({"results": _record_results(_LOST)},))), "fatal"
        ),
        Case("no command, a device that crashes", mac(reply=Reply((), -6, "Abort trap")), "not checked"),
        Case(
            "no command, a device that does not exist",
            linux(
                device="mps",
                reply=Reply(({"results": [{**_record_results()[0], "wrong": "raised RuntimeError: no MPS"}]},)),
            ),
            "not checked",
        ),
        Case("no command, no device requested", linux(device=None), "not checked"),
    ),
)
