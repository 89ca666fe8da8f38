"""Does the accelerator compute the same results as the CPU, operator by operator?

**What it checks.** In the first steps of the dry run, Holdfast takes the operators that run on the accelerator (in the forward pass, the
backward pass and the optimizer step) and runs them again on the CPU, with copies of the same inputs and the same strides. It compares
the results and the in-place changes. The tolerance is measured for each call by perturbing its inputs at the level of rounding errors,
so that low precision passes but wrong results do not.

**Why.** Some accelerator bugs silently produced wrong results and were not noticed for months: a scalar write to the wrong element, a
zero gradient through an expanded tensor, an update that is never written. The loss still looks plausible.

**What to do.** The finding suggests the least invasive workaround, such as making tensors contiguous, running the operator on the CPU,
installing a newer version, or using a different device.

**Limitations.** If everything runs on the CPU, there is nothing to compare. The comparison synchronizes after each operator and
therefore hides races; device-steps-agree checks for those. docs/op_check.md describes the method and its limitations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_dry_runs import on_cpu, on_mps
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, explain_no_steps, get_dry_run
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding, Severity


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run(context)
    wrong = [line for line in dry_run.op_check if line.get("event") == "op-check-operator"]
    ended = next((line for line in dry_run.op_check if line.get("event") == "op-check-ended"), None)
    if ended is None and not wrong:
        raise NotChecked(
            explain_no_steps(dry_run) if not dry_run.steps else "the dry run was stopped before operators were compared"
        )
    return Answer(_message(ended, dry_run), tuple(_make_finding(line, dry_run) for line in wrong))


def _message(ended: Mapping[str, Any] | None, dry_run: DryRunResult) -> str:
    if ended is None:
        return "the dry run was stopped before all of its first steps were compared"
    if not ended["calls"]:
        return "nothing to compare: everything ran on the CPU"
    summary = (
        f"{ended['compared']:,} of {ended['calls']:,} calls on {', '.join(ended['devices']) or 'the accelerator'} in "
        f"{ended['steps']} steps were compared with the CPU, {ended['signatures_compared']:,} of {ended['signatures']:,} "
        "signatures (operator, shapes, strides, dtypes) at least once"
    )
    notes = [*ended["notes"], *([] if dry_run.steps else ["no step was completed"])]
    return "; ".join([summary, *notes])


def _make_finding(line: Mapping[str, Any], dry_run: DryRunResult) -> Finding:
    known = line.get("known")
    place = line.get("place") or {}
    where = place.get("yours") or place.get("called") or ""
    return finding(
        _choose_severity(line, dry_run),
        f"{line['operator']} is wrong on {_find_device(line)} ({line['phase']}, step {line['step']}): {line['message']}"
        + (f". This is a known bug: {_format_issue(known)}" if known and _format_issue(known) else "")
        + ".",
        evidence=[
            *(_describe_tensor(tensor) for tensor in line["tensors"]),
            *([f"{name}: {value}" for name, value in line["figures"].items()]),
            *([f"called at {where}"] if where else []),
            *(["the same call was correct when it was repeated"] if line.get("steady") is False else []),
        ],
        remedies=[str(line["workaround"])],
        confidence="likely" if line.get("steady") is False else "proven",
    )


def _choose_severity(line: Mapping[str, Any], dry_run: DryRunResult) -> Severity:
    """Return "warn" for a missing operator: the script may catch the error, or the CPU may run the operator instead."""
    return "warn" if line["kind"] == "raises" and dry_run.steps else "fatal"


def _format_issue(known: Mapping[str, Any]) -> str:
    return ", ".join(map(str, known.get("issues", [])))


def _find_device(line: Mapping[str, Any]) -> str:
    devices = [
        str(tensor["device"]) for tensor in line["tensors"] if parse_device(tensor["device"]).kind.is_accelerator
    ]
    return devices[0] if devices else "the device"


def _describe_tensor(tensor: Mapping[str, Any]) -> str:
    offset = f", offset {tensor['offset']}" if tensor.get("offset") else ""
    return f"{tensor['argument']}: {tensor['dtype']} {tensor['shape']}, strides {tensor['stride']}{offset}, on {tensor['device']}"


_ENDED = {
    "event": "op-check-ended", "calls": 4311, "compared": 1204, "signatures": 310, "signatures_compared": 310, "steps": 3,
    "devices": {"mps": {}}, "notes": [],
}  # fmt: skip
_NOTHING = {**_ENDED, "calls": 0, "compared": 0, "signatures": 0, "signatures_compared": 0, "devices": {}}
_WRONG = {
    "event": "op-check-operator", "operator": "aten.addcdiv_.default", "step": 1, "phase": "optimizer", "kind": "not-written",
    "message": "nothing was written where the CPU changes 96 of 96 elements", "figures": {"wrong": 96, "of": 96},
    "tensors": [
        {"argument": "self", "shape": [8, 12], "stride": [1, 8], "dtype": "float32", "device": "mps:0", "offset": 0}
    ],
    "place": {"yours": "train.py:40, in <module>"}, "known": {"id": "F13", "issues": ["pytorch#165267"], "remedy": "newer"},
    "steady": True, "workaround": "call .contiguous() on what addcdiv_ is given",
}  # fmt: skip

CHECK = Check(
    kind="device",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("all results agree with the CPU", on_mps(op_check=[_ENDED]), "passed"),
        Case("a script that uses only the CPU", on_cpu(op_check=[_NOTHING]), "passed"),
        Case("an optimizer update is lost", on_mps(op_check=[_WRONG, _ENDED]), "fatal"),
        Case("the dry run was killed after it reported a wrong result", on_mps(op_check=[_WRONG], code=None), "fatal"),
        Case(
            "a missing operator that does not stop the script",
            on_mps(op_check=[{**_WRONG, "kind": "raises"}, _ENDED]),
            "warn",
        ),
        Case("no step was completed", on_mps(losses=(), code=None), "not checked"),
    ),
)
