"""One drill under the real supervisor: `main(NAME, FOLDER)`.

A process of its own, so that its signals, its terminal and its output are those of any supervised run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.act import supervisor
from holdfast.judge.picture import picture_of
from holdfast.lab.drills import drill_named
from holdfast.lab.firing import FIRED
from holdfast.lab.places import Places
from holdfast.lab.world import surroundings
from holdfast.record import folder as folders
from holdfast.record.plan_file import write_plan
from holdfast.record.redact import shown
from holdfast.show.live import Narrator
from holdfast.show.summary import summary_of, write_summary
from holdfast.words.plan import Budget, Plan


def main(name: str, folder: str) -> int:
    drill = drill_named(name)
    assert drill is not None, name
    places = Places(Path(folder))
    places.work.mkdir()
    os.environ[FIRED] = str(places.fired)
    plan = Plan(
        command=[sys.executable, "-m", "holdfast.lab.program", name],
        cwd=str(places.work),
        budget=Budget(attempts=max(1, drill.attempts)),
        backoff_s=0.0,
        keep_awake=False,
        **drill.plan,
    )
    run = folders.create(plan.command, root=Path(folder), folder=places.run)
    write_plan(run, plan)
    verdict = supervisor.start(run, plan, [Narrator(run)], surroundings(drill.world, places.work))
    write_summary(run, summary_of(run, picture_of(shown(run, plan))))
    return verdict.exit_status
