"""The command of each contender, and the measurement of one run."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import BIN, HOLDFAST, PEERS, PYTHON, ROOT, RunFailed, execute, last_line, scratch

PROGRAMS = Path(__file__).parent / "programs"
MAX_STARTS = 30
SHELL_LOOP = f'n=0; until "$@"; do n=$((n+1)); [ $n -lt {MAX_STARTS} ] || exit 1; done'
NOT_PASSED_ON = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "BENCH"}


def compile_holdfast() -> None:
    """Compile Holdfast to bytecode, as pip does for an installed package. Otherwise every attempt would compile it again."""
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(ROOT / "src")], check=True)


def holdfast(script: str, kills: int, *more: str) -> list[str]:
    """Return the command. Repeated kills need only --max-attempts, because the default is ten attempts."""
    command = [HOLDFAST, "run", "--dir", "run", "--max-attempts", str(kills + 1), *more, "--"]
    return [*command, PYTHON, str(PROGRAMS / script)]


def loop_in_shell(*command: str) -> list[str]:
    return ["bash", "-c", SHELL_LOOP, "loop", *command]


def command_of(contender: str, program: str, kills: int) -> list[str]:
    plain = program == "plain loop"
    script = "plain_bare.py" if plain else "yolo_train.py"
    guarded = "plain_guarded.py" if plain else "yolo_train.py"
    if contender == "bare":
        return [PYTHON, str(PROGRAMS / script)]
    if contender == "holdfast":
        return holdfast(guarded, kills)
    if contender == "holdfast --max-lost-work 1":
        return holdfast(guarded, kills, "--max-lost-work", "1")
    if contender == "torchrun":
        one = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(kills)]
        return [str(BIN / "torchrun"), *one, str(PROGRAMS / "plain_checkpointed.py")]
    if contender == "lightning":
        return loop_in_shell(str(PEERS["lightning"][0] / "bin/python"), str(PROGRAMS / "plain_lightning.py"))
    if contender == "ultralytics' own resume":
        return loop_in_shell(PYTHON, str(PROGRAMS / "yolo_train.py"), "own-resume")
    raise ValueError(f"unknown contender: {contender}")


def run(contender: str, program: str, config: dict[str, Any], kills: list[int], kept: Path | None) -> dict[str, Any]:
    """Run one training to its end, with all restarts. Copy Holdfast's run folder to `kept` if given."""
    with scratch() as folder:
        env = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON and not k.startswith("HOLDFAST_")}
        env |= {"OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(config["settings"])}
        env["BENCH"] = json.dumps({**config, "folder": str(folder), "kills": kills})
        began_at = time.time()
        code, wall = execute(command_of(contender, program, len(kills)), folder, env)
        try:
            result = json.loads((folder / "result.json").read_text())
        except OSError:
            raise RunFailed(f"exit {code}, the training did not finish: {last_line(folder)}") from None
        attempts = [json.loads(line) for line in (folder / "lives.jsonl").read_text().splitlines()]
        result |= {
            "contender": contender,
            "wall_s": wall,
            "exit": code,
            "batches_made": (folder / "batches").stat().st_size,
            "kills": sum(attempt_event["what"] == "killed" for attempt_event in attempts),
            "lives": attempts,
            "start_s": attempts[0]["at"] - began_at,
            "ending_s": began_at + wall - (result["first_at"] + result["loop_s"]),
            "restarts_s": _restarts(attempts),
        }
        if (folder / "run").exists():
            result["holdfast"] = _summary(folder / "run")
            if kept is not None:
                shutil.copytree(folder / "run", kept)
        return result


def _restarts(attempts: list[dict[str, Any]]) -> list[float]:
    """Return the time from each kill to the end of the first batch of the next attempt."""
    times = []
    for before, after in itertools.pairwise(attempts):
        if before["what"] == "killed" and after["what"] == "first":
            times.append(after["at"] - before["at"])
    return times


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError) as error:
        return {"error": f"no summary: {error!r}"}
    resumed = [attempt["resumed"] for attempt in summary["attempts"][1:]]
    return {
        "verdict": summary["verdict"],
        "goodput": summary["goodput"],
        "resumed_at": [one and one.get("step") for one in resumed],
        "inexact": [one for one in resumed if one and one.get("exact") is False],
        "alarms": sorted({f["rule"] for f in summary["findings"] if f["severity"] != "note"}),
    }
