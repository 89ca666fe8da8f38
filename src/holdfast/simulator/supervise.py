"""One drill under the real supervisor: `main(NAME, FOLDER)`.

It runs in a separate process, so that signals, terminal and output behave as in any supervised run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.diagnosis.run_state import load_run_state
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.summary import summary_of, write_summary
from holdfast.schema.plan import Budget, Plan
from holdfast.simulator.drills import find_drill
from holdfast.simulator.fake_machine import create_deps
from holdfast.simulator.fault_log import FAULT_LOG
from holdfast.simulator.paths import DrillPaths
from holdfast.storage import folder as folders
from holdfast.storage.plan_copy import write_plan
from holdfast.storage.redact import replay_redacted
from holdfast.supervisor import supervisor


def main(name: str, folder: str) -> int:
    drill = find_drill(name)
    assert drill is not None, name
    paths = DrillPaths(Path(folder))
    paths.work.mkdir()
    os.environ[FAULT_LOG] = str(paths.faults)
    plan = Plan(
        command=[sys.executable, "-m", "holdfast.simulator.program", name],
        cwd=str(paths.work),
        budget=Budget(attempts=max(1, drill.attempts)),
        backoff_s=0.0,
        keep_awake=False,
        **drill.plan,
    )
    run = folders.create(plan.command, root=Path(folder), folder=paths.run)
    write_plan(run, plan)
    verdict = supervisor.start(run, plan, [ConsoleReporter(run)], create_deps(drill.machine, paths.work))
    write_summary(run, summary_of(run, load_run_state(replay_redacted(run, plan))))
    return verdict.exit_status
