"""Do torchvision's compiled operators load with this torch?

**What it asks.** torchvision is imported in the training's own Python, and its NMS is run on three boxes.

**Why.** `operator torchvision::nms does not exist` comes where torch and torchvision were installed from different sources: the
usual torchvision for Linux beside a CPU build of torch, a torch that was upgraded alone. A detector then ends at import, or
works until its first validation.

**What to do.** Install both together, from the same place. Under `holdfast run` an NMS made of torch alone is put in the place
of the missing one, so that the training works all the same, a little slower in validation.

Sources: pytorch/vision#9077, pytorch/vision#8289, ultralytics#20311.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import format_version, torchvision_for
from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.schema.shell_text import shell_quoted

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "torchvision-loads"


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    have = python.packages.get("torchvision")
    if have is None:
        raise NotChecked("torchvision is not installed, and nothing but detectors needs it")
    if python.died.startswith("torchvision"):
        problem = f"{python.died.partition(': ')[2]} while it was imported {python.last_words}".strip()
    elif python.torchvision is None:
        raise NotChecked("torchvision was not tried")
    else:
        problem = "" if python.torchvision == "loads" else python.torchvision
    message = f"torchvision {have} loads, and its NMS computes"
    if not problem:
        return Answer(message)
    wanted = torchvision_for(python.versions.torch)
    twin = f"torchvision=={format_version(wanted)}.*" if wanted is not None else "torchvision"
    index = (
        " (from the package index that this CPU build of torch came from)"
        if "+cpu" in python.packages.get("torch", "")
        else ""
    )
    message = (
        f"torchvision {have} does not work with torch {python.packages.get('torch', '')}. `holdfast run` puts an NMS of torch "
        "alone in its place; without Holdfast a detector ends here."
    )
    remedy = f'{shell_quoted(python.executable)} -m pip install --force-reinstall --no-deps "{twin}"{index}'
    return Answer(message, (finding(ID, "warn", message, evidence=[problem], remedies=[remedy]),))


_MISSING = {"torchvision": "RuntimeError: operator torchvision::nms does not exist"}

CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    needs=("torch",),
    cases=(
        Case("PyPI's torchvision beside a CPU build of torch", linux(facts=_MISSING), "warn"),
        Case(
            "it crashes the process",
            linux(facts={"torchvision": None, "died": "torchvision: it was ended by SIGSEGV"}),
            "warn",
        ),
        Case("both from the same place", linux(), "passed"),
        Case("on a Mac", mac(), "passed"),
        Case("not installed", linux(facts={"packages": {"torch": "2.13.0"}, "torchvision": None}), "not checked"),
    ),
)
