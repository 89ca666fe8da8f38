"""Does this combination of installed versions have known bugs?

**What it checks.** Compares the versions of torch, macOS, NumPy, torchvision and the training framework with publicly
known bugs, for example:

- lost writes on Apple GPUs (all losses are exactly 0)
- batches that are copied without synchronization
- out-of-bounds reads in matrix products
- versions of torch and NumPy that are not binary compatible

**Why.** One user trained for hours with all losses and metrics at 0 and concluded "never use MPS for YOLO". The cause
was a bug in the combination of two versions, which the next release fixed. Comparing versions takes a second.

**What to do.** Install the version that the finding names.

**Severity.** Bugs that affect every object detector are `fatal`; bugs that occur only with certain tensor shapes or at random are
`warn`. Bugs of Apple GPUs are `warn` if no device was requested, and are not reported on the CPU.

Sources: each finding names its own, among them pytorch#122016, ultralytics/hub#1199 and pytorch#132179.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import faults_of, format_version, parse_version, torchvision_for
from holdfast.frameworks import all_frameworks, framework_packages
from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, fatal, finding, warn
from holdfast.preflight.checks.interpreter import Torch
from holdfast.schema.shell_text import shell_quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.versions import KnownFault
    from holdfast.preflight.checks.interpreter import Interpreter
    from holdfast.schema.verdicts import Finding

MIN_TORCH = (2, 1)
MIN_PYTHON = (3, 9)


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    return Answer(f"{_format_versions(python)}: no known bugs in this combination", tuple(_findings(context, python)))


def _findings(context: CheckContext, python: Interpreter) -> Iterator[Finding]:
    versions = python.versions
    if versions.torch is None:
        yield finding(
            "warn" if context.is_guessed else "fatal",
            f"There is no usable torch: {python.no_torch}"
            + (", which may not be the Python interpreter of your script." if context.is_guessed else "."),
            evidence=[python.executable],
            remedies=[
                f"{shell_quote(python.executable)} -m pip install torch",
                "or specify the Python that has torch: holdfast check -- /path/to/python train.py",
            ],
        )
        return
    if python.torch is None:
        yield fatal(
            f"torch is installed but does not work: {python.no_torch}.",
            evidence=[_format_versions(python), *(line for line in (python.died, python.last_lines) if line)],
            remedies=[f"{shell_quote(python.executable)} -m pip install --force-reinstall torch"],
        )
    for fault in faults_of(versions):
        if fault.variable is None and not _is_irrelevant(fault, context, python):
            yield _report_fault(fault, context, python)
    yield from _check_torchvision(python)
    yield from _check_minimums(python)


def _is_irrelevant(fault: KnownFault, context: CheckContext, python: Interpreter) -> bool:
    """Return whether the bug concerns a device or chip that is not used, or was tested and did not occur."""
    if "numpy" in fault.packages and python.torch is not None and python.torch.numpy_error is None:
        return True
    if fault.on_mps and context.trains_on("mps") is False:
        return True
    return bool(fault.chips and python.chip and not python.chip.startswith(fault.chips))


def _report_fault(fault: KnownFault, context: CheckContext, python: Interpreter) -> Finding:
    unsure = fault.on_mps and not context.trains_on("mps")
    error = python.torch.numpy_error if python.torch is not None and "numpy" in fault.packages else None
    return finding(
        "warn" if unsure else fault.severity,
        f"{fault.what}{'. This applies only if training runs on MPS; no device was specified' if unsure else ''}.",
        evidence=[_format_versions(python), *([error] if error else []), fault.sources],
        remedies=[fault.remedy, *(["train on the CPU until then: device=cpu"] if fault.on_mps else [])],
    )


def _check_torchvision(python: Interpreter) -> Iterator[Finding]:
    """Check that torchvision matches this torch. Another check tests whether it loads."""
    torch, have = python.versions.torch, python.versions.packages.get("torchvision")
    wanted = torchvision_for(torch)
    if torch is None or have is None or wanted is None or have[:2] == wanted:
        return
    yield warn(
        f"torch {format_version(torch)} requires torchvision {format_version(wanted)}, but {format_version(have)} is installed.",
        evidence=[_format_versions(python)],
        remedies=[f'{shell_quote(python.executable)} -m pip install "torchvision=={format_version(wanted)}.*"'],
    )


def _check_minimums(python: Interpreter) -> Iterator[Finding]:
    torch, own = python.versions.torch, parse_version(python.python)
    if torch is not None and torch < MIN_TORCH:
        yield warn(
            f"Holdfast supports torch 2.1 and newer; this is {format_version(torch)}: a run is supervised, but its steps are not recorded.",
            evidence=[_format_versions(python)],
            remedies=["install a newer torch"],
        )
    if own is not None and own < MIN_PYTHON:
        yield warn(
            f"Holdfast supports Python 3.9 and newer; this is {python.python}: a run is supervised, but its steps are not recorded.",
            evidence=[python.executable],
            remedies=["use a newer Python"],
        )


def _format_versions(python: Interpreter) -> str:
    named = ("torch", "torchvision", *framework_packages(), "numpy")
    have = [f"{name} {python.packages[name]}" for name in named if name in python.packages]
    system = f"macOS {python.macos}" if python.macos else python.platform.partition("-")[0]
    return ", ".join([*have, f"Python {python.python}", *([system] if system else [])])


def _make_framework_cases() -> Iterator[Case]:
    """Yield two cases for each bug of a framework: with the first version that has it, on a Mac and elsewhere."""
    for fault in (fault for framework in all_frameworks() for fault in framework.known_faults):
        packages = {name: format_version(range_.first) for name, range_ in fault.packages.items()}
        used = ", ".join(f"{name} {version}" for name, version in packages.items())
        yield Case(f"{used} on a Mac", mac(packages=packages), fault.severity)
        elsewhere = "passed" if fault.macos is not None else fault.severity
        yield Case(f"{used} on Linux", linux(packages=packages), elsewhere)


_NOT_INSTALLED = "torch is not installed in /usr/bin/python3"
_OLD = {"torchvision": "0.17.1", "numpy": "1.26.4"}
_NUMPY = Torch(version="2.2.2", numpy_error="RuntimeError: Numpy is not available")

CHECK = Check(
    kind="environment",
    run=run,
    needs=("interpreter",),
    cases=lambda: (
        Case("torch 2.2 on macOS 14.4, training on MPS", mac(torch="2.2.1", macos="14.4.1", packages=_OLD), "fatal"),
        Case(
            "torch 2.2 on macOS 14.4, no device requested",
            mac(torch="2.2.1", macos="14.4.1", packages=_OLD, device=None),
            "warn",
        ),
        Case(
            "torch 2.2 on macOS 14.4, training on the CPU",
            mac(torch="2.2.1", macos="14.4.1", device="cpu", packages=_OLD),
            "passed",
        ),
        *_make_framework_cases(),
        Case(
            "NumPy 2 with torch 2.2",
            linux(torch="2.2.2", packages={"torchvision": "0.17.2"}, facts={"torch": _NUMPY}),
            "fatal",
        ),
        Case("macOS 15.5, where gradients through expanded tensors can be wrong", mac(macos="15.5"), "warn"),
        Case("torchvision for a different torch version", linux(packages={"torchvision": "0.24.1"}), "warn"),
        Case("no torch at all", linux(facts={"torch": None, "no_torch": _NOT_INSTALLED, "packages": {}}), "fatal"),
        Case(
            "no torch, and the Python interpreter was guessed",
            linux(facts={"torch": None, "no_torch": _NOT_INSTALLED, "packages": {}}, is_guessed=True),
            "warn",
        ),
        Case("torch that cannot be imported", linux(facts={"torch": None, "no_torch": "it crashed"}), "fatal"),
        Case("a torch that Holdfast does not support", linux(torch="1.13.1", packages={"numpy": "1.26.4"}), "warn"),
        Case("recent versions on a Mac", mac(), "passed"),
        Case("recent versions on Linux", linux(), "passed"),
    ),
)
