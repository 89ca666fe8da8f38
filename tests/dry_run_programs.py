"""Dry-runs a program in a fork, which costs no import: what the real one does inside of the training, without a copy of its folder."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # an optimizer's first step imports it: here once, not in each fork

from holdfast.machine import this_machine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.runner import run_all
from holdfast.preflight.dry_run.cache import REQUEST
from holdfast.preflight.dry_run.run import DryRunResult, read_results
from holdfast.probe.holdfast_probe import dry_run, probe, protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.preflight.checks.check import Check
    from holdfast.preflight.checks.runner import Result

PROGRAMS = Path(__file__).parent.parent / "bench/detection/programs"


def run_in_scratch(folder: Path, program: Callable[[], None] | Path, **asked: Any) -> DryRunResult:
    """`asked` stands over what the checks ask for."""
    attempt, work = folder / "attempt", folder / "work"
    attempt.mkdir(parents=True)
    work.mkdir()
    child = os.fork()
    if not child:
        _in_the_fork(program, attempt, work, {**REQUEST, **asked})
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    words = (folder / "work/output").read_text(errors="replace").splitlines()
    return read_results(attempt, command=("python", "train.py"), code=code, last_lines=tuple(words[-20:]), seconds=1.0)


def results_of(checks: Sequence[Check], come: DryRunResult, **context: Any) -> dict[str, Result]:
    known = CheckContext(
        cwd=Path(), machine=this_machine(), environment={}, command=come.command, make_dry_run=lambda _: come, **context
    )
    return {result.check.id: result for result in run_all(checks, known)}


def _in_the_fork(program: Callable[[], None] | Path, attempt: Path, work: Path, asked: dict[str, Any]) -> None:
    code = 1
    try:
        os.chdir(work)
        output = os.open("output", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ[protocol.ATTEMPT_DIR] = str(attempt)
        os.environ[protocol.CHECK] = json.dumps({"files": {"scratch": [str(work), str(attempt)]}, "dry_run": asked})
        torch.set_num_threads(1)
        dry_run.begin()
        dry_run.before_probe(torch)
        probe.install(torch, str(attempt))
        dry_run.from_environment(torch, probe.current())
        if isinstance(program, Path):
            sys.argv = [str(program)]
            runpy.run_path(str(program), run_name="__main__")
        else:
            program()
        code = 0
    except BaseException:  # noqa: BLE001 - its text is all that the parent sees of it
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            importlib.import_module("atexit")._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
