"""Do torchvision's compiled operators load with this torch?

**What it checks.** Imports torchvision with the Python interpreter of your script and runs its NMS on three boxes.

**Why.** `operator torchvision::nms does not exist` occurs when torch and torchvision were installed from different sources: for example,
the standard torchvision for Linux with a CPU build of torch, or a torch that was upgraded without torchvision. A detector then crashes
at import, or during its first validation.

**What to do.** Install both together, from the same source. `holdfast run` replaces the missing NMS with an implementation in plain
torch, so that training still works, with slightly slower validation.

Sources: pytorch/vision#9077, pytorch/vision#8289, ultralytics#20311.
"""

from __future__ import annotations

from holdfast.diagnosis.versions import format_version, torchvision_for
from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, warn
from holdfast.schema.shell_text import shell_quote


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    have = python.packages.get("torchvision")
    if have is None:
        raise NotChecked("torchvision is not installed; only detectors need it")
    if python.died.startswith("torchvision"):
        problem = f"{python.died.partition(': ')[2]} during its import {python.last_lines}".strip()
    elif python.torchvision is None:
        raise NotChecked("torchvision was not tested")
    else:
        problem = "" if python.torchvision == "loads" else python.torchvision
    message = f"torchvision {have} loads, and its NMS works"
    if not problem:
        return Answer(message)
    wanted = torchvision_for(python.versions.torch)
    requirement = f"torchvision=={format_version(wanted)}.*" if wanted is not None else "torchvision"
    index = (
        " (from the package index that this CPU build of torch came from)"
        if "+cpu" in python.packages.get("torch", "")
        else ""
    )
    message = (
        f"torchvision {have} does not work with torch {python.packages.get('torch', '')}. `holdfast run` replaces its NMS with one "
        "written in plain torch; without Holdfast a detector crashes."
    )
    remedy = f'{shell_quote(python.executable)} -m pip install --force-reinstall --no-deps "{requirement}"{index}'
    return Answer(message, (warn(message, evidence=[problem], remedies=[remedy]),))


_MISSING = {"torchvision": "RuntimeError: operator torchvision::nms does not exist"}

CHECK = Check(
    kind="environment",
    run=run,
    needs=("torch",),
    cases=lambda: (
        Case("torchvision from PyPI with a CPU build of torch", linux(facts=_MISSING), "warn"),
        Case(
            "torchvision crashes the process",
            linux(facts={"torchvision": None, "died": "torchvision: it was killed by SIGSEGV"}),
            "warn",
        ),
        Case("both from the same source", linux(), "passed"),
        Case("both installed on a Mac", mac(), "passed"),
        Case(
            "torchvision is not installed",
            linux(facts={"packages": {"torch": "2.13.0"}, "torchvision": None}),
            "not checked",
        ),
    ),
)
