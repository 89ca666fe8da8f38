"""best.pt, validated once more on the CPU where the device that trained it is suspect, or where the plan asks for it.

What comes out is recorded as the final validation: the rules and proofs that hold a file against what was seen while it trained then
hold it against a device that tells the truth.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from holdfast.act.launching import CHILD_FOLDER
from holdfast.judge.course import result_of
from holdfast.judge.policy import suspects_device
from holdfast.words import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.judge.picture import Picture
    from holdfast.words.plan import Plan

SECONDS = 3600.0
SOURCE = "best.pt on the CPU"
MARK = "holdfast: "
PROGRAM = "import runpy, sys; sys.path.insert(0, sys.argv[2]); runpy.run_module('holdfast_child.revalidate', run_name='__main__')"


def validate_again(picture: Picture, plan: Plan, clock: Callable[[], float]) -> events.AnyEvent | None:
    """A further validation, where one is called for: what came of it."""
    attempt = picture.attempt
    wished = plan.validation.on_cpu
    if attempt.adapter != "ultralytics" or attempt.hello is None or wished == "never" or plan.observe_only:
        return None
    if wished == "auto" and not suspects_device(picture):
        return None
    best = result_of(picture, "mAP50").best
    if best is None or not attempt.settings.get("data"):
        return None
    said = _asked(attempt.hello.executable, attempt.settings, best, plan.cwd)
    if "values" not in said:
        return events.Remark(at=clock(), what="best.pt was not validated on the CPU", detail=str(said.get("why")))
    return events.Metrics(at=clock(), step=attempt.last_step, epoch=None, values=said["values"], source=SOURCE)


def _asked(executable: str, settings: dict[str, Any], best: str, cwd: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-validation-") as folder:
        asked = {name: settings.get(name) for name in ("data", "imgsz", "task")}
        asked |= {"model": best, "folder": folder}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        try:
            printed = subprocess.run(
                [executable, "-c", PROGRAM, json.dumps(asked), str(CHILD_FOLDER)],
                cwd=cwd,
                env={**environment, "CUDA_VISIBLE_DEVICES": ""},
                capture_output=True,
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            ).stdout.decode(errors="replace")
        except (OSError, subprocess.SubprocessError) as error:
            return {"why": str(error)}
    line = next((line for line in reversed(printed.splitlines()) if line.startswith(MARK)), None)
    try:
        said = json.loads(line.removeprefix(MARK)) if line is not None else {}
    except ValueError:
        said = {}
    return said if isinstance(said, dict) and said else {"why": "it said nothing"}
