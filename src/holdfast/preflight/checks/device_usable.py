"""Is the device there, and does it compute?

**What it asks.** In the training's own Python: can torch see the device, do numbers come back from it as they went, is a
product of two matrices right, is there a gradient. With `auto`, every device that torch sees is tried, the fastest that works
is named, and one that does not is a warning.

**Why.** A torch without CUDA trains on the CPU without a word, or ends at its first line; a driver that is too old, a GPU that
another process holds, a virtual machine without Metal show in the first second here instead of after the data was loaded.

**What to do.** What the finding says: install the build of torch that has the device, or train on another.

Whether the device computes every operator of the training rightly is asked by the checks of the device; this one is only the
door.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, device_kind, finding
from holdfast.preflight.checks.interpreter import Reply, Torch
from holdfast.probe.holdfast_probe.env_scripts import device as trial

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "device-usable"
TRIAL = Path(trial.__file__)


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    assert python.torch is not None
    wanted = _wanted(context.device, python.torch)
    absent = [name for name in wanted if not _visible(name, python.torch)]
    if absent:
        return Answer(f"torch sees {', '.join(python.torch.devices)}", (_absent(absent[0], context, python.torch),))
    reply = context.run_program(TRIAL, *wanted)
    results = {line["device"]: line for line in reply.lines if "device" in line}
    works = {name: line.get("seconds") or 0.0 for name, line in results.items() if line.get("problem") is None}
    findings = [
        _fails(name, results[name]["problem"], context, works)
        for name in wanted
        if name in results and name not in works
    ]
    unfinished = [name for name in wanted if name not in results]
    if unfinished and reply.failure is None:
        raise NotChecked(f"nothing was said of {unfinished[0]}")
    if unfinished:
        findings.append(_fails(unfinished[0], _end(reply), context, works))
    return Answer(_praise(context, works, python.torch), tuple(findings))


def _wanted(device: str | None, torch: Torch) -> list[str]:
    if device in (None, "auto", "-1"):
        return torch.devices
    assert device is not None
    if device_kind(device) != "cuda":
        return [device]
    numbers = device.partition(":")[2] if ":" in device else device.strip("[]() ")
    indices = [part.strip() for part in numbers.split(",") if part.strip().isdigit()]
    return [f"cuda:{index}" for index in indices] or ["cuda:0"]


def _visible(name: str, torch: Torch) -> bool:
    """A device of a kind that is not known here is left to torch itself."""
    return name in torch.devices or device_kind(name) not in ("cuda", "mps")


def _absent(name: str, context: CheckContext, torch: Torch) -> Finding:
    kind = device_kind(name)
    several = [device for device in torch.devices if device.startswith(kind)]
    hidden = context.environment.get("CUDA_VISIBLE_DEVICES")
    if several:
        why, remedy = f"torch sees only {', '.join(several)}", f"use device={several[0]}"
    elif kind == "mps" and not torch.mps_built:
        why, remedy = "this torch was built without MPS", "install torch for arm64 macOS, under a Python for arm64"
    elif kind == "mps":
        why, remedy = (
            "torch was built with MPS, and macOS offers no GPU to it",
            "macOS 12.3 or newer on Apple's own chips has it; a virtual machine may not",
        )
    elif torch.cuda_build is None:
        why, remedy = (
            f"torch {torch.version} was built without CUDA",
            "install the build for your driver from https://pytorch.org/get-started/locally",
        )
    elif hidden is not None and hidden.strip() in ("", "-1"):
        why, remedy = f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
    else:
        why, remedy = torch.cuda_error or "no driver or no GPU answers", "look at: nvidia-smi"
    others = [device for device in torch.devices if not device.startswith(kind)]
    return finding(
        ID,
        "fatal",
        f"{name} was asked for and is not there: {why}.",
        evidence=[f"torch {torch.version} sees {', '.join(torch.devices)}"],
        remedies=[remedy, f"or train on another: device={others[0]}"] if others else [remedy],
    )


def _fails(name: str, problem: str, context: CheckContext, works: dict[str, float]) -> Finding:
    asked = context.trains_on(device_kind(name))
    others = sorted(works, key=lambda device: works[device])
    return finding(
        ID,
        "fatal" if asked or not works else "warn",
        f"{name} is there and cannot be used: {problem}.",
        evidence=[problem],
        remedies=[
            *(f"train on another: device={device}" for device in others[:1]),
            "restart the machine, and look at what else uses the device",
        ],
    )


def _end(reply: Reply) -> str:
    last = f" ({reply.last_line})" if reply.last_line else ""
    return f"{reply.failure} while it was tried{last}"


def _praise(context: CheckContext, works: dict[str, float], torch: Torch) -> str:
    if not works:
        return "no device could be used"
    fastest = min(works, key=lambda device: works[device])
    name = f" ({torch.names[fastest]})" if fastest in torch.names else ""
    if context.trains_on("cpu") is None and len(works) > 1:
        return f"{', '.join(works)} can be used; {fastest}{name} is the fastest at a product of two matrices"
    return f"{', '.join(works)}{name} computes, and copies come back as they went"


_CUDA = {
    "torch": Torch(version="2.13.0+cu130", cuda_build="13.0", devices=["cuda:0", "cpu"], names={"cuda:0": "RTX 4090"})
}
_NO_DRIVER = {"torch": Torch(version="2.13.0+cu130", cuda_build="13.0")}
_BOTH = Reply(
    ({"device": "mps", "problem": None, "seconds": 0.001}, {"device": "cpu", "problem": None, "seconds": 0.02})
)
_LIES = ({"device": "mps", "problem": "numbers that were copied there and back are not the same"},)
_CPU = ({"device": "cpu", "problem": None, "seconds": 0.01},)

CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    needs=("torch",),
    seconds=90.0,
    cases=(
        Case("MPS computes", mac(reply=Reply(_BOTH.lines[:1])), "passed"),
        Case("auto, and both work", mac(device="auto", reply=_BOTH), "passed"),
        Case("MPS gives back other numbers", mac(reply=Reply(_LIES)), "fatal"),
        Case("the same with auto: the CPU is left", mac(device="auto", reply=Reply(_LIES + _CPU)), "warn"),
        Case("the GPU crashes the process", mac(reply=Reply(({"trying": "mps"},), -6, "Abort trap")), "fatal"),
        Case("the GPU hangs", mac(reply=Reply(({"trying": "mps"},), None)), "fatal"),
        Case("CUDA asked of a torch without it", linux(device="cuda"), "fatal"),
        Case("no driver", linux(device="0", facts=_NO_DRIVER), "fatal"),
        Case(
            "hidden by a variable",
            linux(device="cuda:0", facts=_NO_DRIVER, environment={"CUDA_VISIBLE_DEVICES": ""}),
            "fatal",
        ),
        Case("a second GPU that is not there", linux(device="0,1", facts=_CUDA), "fatal"),
        Case("MPS asked for on Linux", linux(device="mps"), "fatal"),
        Case("the CPU", linux(reply=Reply(_CPU)), "passed"),
        Case("the trial said nothing", linux(reply=Reply()), "not checked"),
    ),
)
