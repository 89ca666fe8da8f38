"""Is the device available, and does it compute correctly?

**What it checks.** With the Python interpreter of your script: does torch see the device? Are values unchanged after a
copy to the device and back? Is a matrix product correct? Does a backward pass produce a gradient? With `auto`, or if no
device is requested, every device that torch sees is tested. Holdfast reports the fastest working device, and warns
about each one that does not work.

**Why.** With a CPU-only build of torch, training silently runs on the CPU or fails immediately. An outdated driver, a GPU that is
occupied by another process or a virtual machine without Metal is found in the first second instead of after the data is loaded.

**What to do.** Follow the advice in the finding: install the build of torch that supports the device, or train on a
different device.

**Limitations.** This is only a basic test. device-operators tests whether the device computes each operator of your
script correctly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, fatal, finding
from holdfast.preflight.checks.interpreter import Reply, Torch
from holdfast.probe.holdfast_probe.env_scripts import device as runner
from holdfast.probe.holdfast_probe.env_scripts import facts
from holdfast.schema.devices import device_kind, parse_device

if TYPE_CHECKING:
    from holdfast.schema.verdicts import Finding

RUNNER = Path(runner.__file__)


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    assert python.torch is not None
    wanted = _list_devices(context.device, python.torch)
    absent = [name for name in wanted if not _is_visible(name, python.torch)]
    if absent:
        return Answer(
            f"torch sees {', '.join(python.torch.devices)}", (_report_absent(absent[0], context, python.torch),)
        )
    reply = context.run_program(RUNNER, *wanted)
    results = {line["device"]: line for line in reply.lines if "device" in line}
    works = {name: line.get("seconds") or 0.0 for name, line in results.items() if line.get("problem") is None}
    findings = [
        _report_failure(name, results[name]["problem"], context, works)
        for name in wanted
        if name in results and name not in works
    ]
    unfinished = [name for name in wanted if name not in results]
    if unfinished and reply.failure is None:
        raise NotChecked(f"there is no result for {unfinished[0]}")
    if unfinished:
        findings.append(_report_failure(unfinished[0], _describe_crash(reply), context, works))
    return Answer(_summarize(context, works, python.torch), tuple(findings))


def _list_devices(device: str | None, torch: Torch) -> list[str]:
    if not device_kind(device) or device == "-1":
        return torch.devices
    return parse_device(device).names


def _is_visible(name: str, torch: Torch) -> bool:
    """Return whether torch sees the device. Kinds that are not listed are assumed to be visible and left to torch."""
    return name in torch.devices or device_kind(name) not in facts.LISTED


def _report_absent(name: str, context: CheckContext, torch: Torch) -> Finding:
    kind = device_kind(name)
    several = [device for device in torch.devices if device_kind(device) == kind]
    hidden = context.environment.get("CUDA_VISIBLE_DEVICES")
    if several:
        why, remedy = f"torch sees only {', '.join(several)}", f"use device={several[0]}"
    elif kind == "mps" and not torch.mps_built:
        why, remedy = "this torch was built without MPS", "install torch for arm64 macOS, under a Python for arm64"
    elif kind == "mps":
        why, remedy = (
            "torch was built with MPS, but macOS provides no GPU",
            "MPS needs macOS 12.3 or newer on Apple silicon; a virtual machine may not have it",
        )
    elif torch.cuda_build is None:
        why, remedy = (
            f"torch {torch.version} was built without CUDA",
            "install the build for your driver from https://pytorch.org/get-started/locally",
        )
    elif hidden is not None and hidden.strip() in ("", "-1"):
        why, remedy = f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
    else:
        why, remedy = torch.cuda_error or "no driver or no GPU responds", "check the output of nvidia-smi"
    others = [device for device in torch.devices if device not in several]
    return fatal(
        f"{name} was requested but is not available: {why}.",
        evidence=[f"torch {torch.version} sees {', '.join(torch.devices)}"],
        remedies=[remedy, f"or train on a different device: device={others[0]}"] if others else [remedy],
    )


def _report_failure(name: str, problem: str, context: CheckContext, works: dict[str, float]) -> Finding:
    is_requested = context.trains_on(device_kind(name))
    others = sorted(works, key=lambda device: works[device])
    return finding(
        "fatal" if is_requested or not works else "warn",
        f"{name} exists but cannot be used: {problem}.",
        evidence=[problem],
        remedies=[
            *(f"train on a different device: device={device}" for device in others[:1]),
            "restart the machine, and check which other programs use the device",
        ],
    )


def _describe_crash(reply: Reply) -> str:
    last = f" ({reply.last_line})" if reply.last_line else ""
    return f"{reply.failure} during the test{last}"


def _summarize(context: CheckContext, works: dict[str, float], torch: Torch) -> str:
    if not works:
        return "no device could be used"
    fastest = min(works, key=lambda device: works[device])
    name = f" ({torch.names[fastest]})" if fastest in torch.names else ""
    if context.trains_on("cpu") is None and len(works) > 1:
        return f"{', '.join(works)} can be used; {fastest}{name} is the fastest at a matrix product"
    return f"{', '.join(works)}{name} works: copies, a matrix product and a gradient are correct"


_CUDA = {
    "torch": Torch(version="2.13.0+cu130", cuda_build="13.0", devices=["cuda:0", "cpu"], names={"cuda:0": "RTX 4090"})
}
_NO_DRIVER = {"torch": Torch(version="2.13.0+cu130", cuda_build="13.0")}
_BOTH = Reply(
    ({"device": "mps", "problem": None, "seconds": 0.001}, {"device": "cpu", "problem": None, "seconds": 0.02})
)
_WRONG = ({"device": "mps", "problem": "a tensor that was copied to the device and back has changed"},)
_CPU = ({"device": "cpu", "problem": None, "seconds": 0.01},)

CHECK = Check(
    kind="environment",
    run=run,
    needs=("torch",),
    seconds=90.0,
    cases=lambda: (
        Case("device mps, and MPS works", mac(reply=Reply(_BOTH.lines[:1])), "passed"),
        Case("device auto, and both MPS and the CPU work", mac(device="auto", reply=_BOTH), "passed"),
        Case("device mps, and a copy to MPS and back changes the values", mac(reply=Reply(_WRONG)), "fatal"),
        Case("device auto, and only the CPU works", mac(device="auto", reply=Reply(_WRONG + _CPU)), "warn"),
        Case("the GPU crashes the process", mac(reply=Reply(({"trying": "mps"},), -6, "Abort trap")), "fatal"),
        Case("the GPU hangs", mac(reply=Reply(({"trying": "mps"},), None)), "fatal"),
        Case("CUDA requested, torch built without CUDA", linux(device="cuda"), "fatal"),
        Case("CUDA requested, no driver installed", linux(device="0", facts=_NO_DRIVER), "fatal"),
        Case(
            "CUDA requested, GPUs hidden by CUDA_VISIBLE_DEVICES",
            linux(device="cuda:0", facts=_NO_DRIVER, environment={"CUDA_VISIBLE_DEVICES": ""}),
            "fatal",
        ),
        Case("two GPUs requested, only one exists", linux(device="0,1", facts=_CUDA), "fatal"),
        Case("MPS requested on Linux", linux(device="mps"), "fatal"),
        Case("device cpu, and the CPU works", linux(reply=Reply(_CPU)), "passed"),
        Case("the test reported nothing", linux(reply=Reply()), "not checked"),
    ),
)
