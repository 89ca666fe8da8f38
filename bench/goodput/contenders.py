"""How each contender is started, and what one run of it gives."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs"
BIN = ROOT / ".venv/bin"
LIGHTNING = ROOT / "bench/.venv-lightning"
LIGHTNING_PACKAGES = ["lightning==2.6.6", "psutil", "torch==2.13.0"]  # as in bench/overhead, which shares it
RUN_LIMIT_S = 600
MAX_LIVES = 30
SHELL_LOOP = f'n=0; until "$@"; do n=$((n+1)); [ $n -lt {MAX_LIVES} ] || exit 1; done'
PYTHON = str(BIN / "python")
NOT_PASSED_ON = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "BENCH"}


class RunFailed(Exception):
    """A run gave no result; the message says what was seen last."""


def compile_holdfast() -> None:
    """As pip does where it installs a package, for its peers too: from a bare checkout every life would compile it again."""
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(ROOT / "src")], check=True)


def ensure_lightning() -> None:
    """Lightning's environment, made on first use."""
    stamp = LIGHTNING / ".installed"
    if stamp.exists() and stamp.read_text() == " ".join(LIGHTNING_PACKAGES):
        return
    subprocess.run([sys.executable, "-m", "venv", str(LIGHTNING)], check=True)
    pip = [str(LIGHTNING / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *LIGHTNING_PACKAGES], check=True)
    stamp.write_text(" ".join(LIGHTNING_PACKAGES))


def holdfast(script: str, kills: int, *more: str) -> list[str]:
    """--max-attempts is the one setting that a storm needs: three lives are the default."""
    command = [str(BIN / "holdfast"), "run", "--dir", "run", "--max-attempts", str(kills + 1), *more, "--"]
    return [*command, PYTHON, str(PROGRAMS / script)]


def in_a_shell_loop(*command: str) -> list[str]:
    return ["bash", "-c", SHELL_LOOP, "loop", *command]


def command_of(contender: str, program: str, kills: int) -> list[str]:
    plain = program == "plain loop"
    script = "plain_bare.py" if plain else "yolo_train.py"
    watched = "plain_guarded.py" if plain else "yolo_train.py"
    if contender == "bare":
        return [PYTHON, str(PROGRAMS / script)]
    if contender == "holdfast":
        return holdfast(watched, kills)
    if contender == "holdfast --max-lost-work 1":
        return holdfast(watched, kills, "--max-lost-work", "1")
    if contender == "torchrun":
        one = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(kills)]
        return [str(BIN / "torchrun"), *one, str(PROGRAMS / "plain_checkpointed.py")]
    if contender == "lightning":
        return in_a_shell_loop(str(LIGHTNING / "bin/python"), str(PROGRAMS / "plain_lightning.py"))
    if contender == "ultralytics' own resume":
        return in_a_shell_loop(PYTHON, str(PROGRAMS / "yolo_train.py"), "own-resume")
    raise ValueError(f"unknown contender: {contender}")


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(contender: str, program: str, config: dict[str, Any], kills: list[int], kept: Path | None) -> dict[str, Any]:
    """One training from its first start to its end. Where `kept` is given, Holdfast's run folder is left there."""
    with scratch() as folder:
        env = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON and not k.startswith("HOLDFAST_")}
        env |= {"OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(config["settings"])}
        env["BENCH"] = json.dumps({**config, "folder": str(folder), "kills": kills})
        began, began_at = time.perf_counter(), time.time()
        code, log = _execute(command_of(contender, program, len(kills)), folder, env)
        wall = time.perf_counter() - began
        try:
            result = json.loads((folder / "result.json").read_text())
        except OSError:
            raise RunFailed(f"exit {code}, the training did not end: {_last_words(log)}") from None
        lives = [json.loads(line) for line in (folder / "lives.jsonl").read_text().splitlines()]
        result |= {
            "contender": contender,
            "wall_s": wall,
            "exit": code,
            "batches_made": (folder / "batches").stat().st_size,
            "kills": sum(life["what"] == "killed" for life in lives),
            "lives": lives,
            "start_s": lives[0]["at"] - began_at,
            "ending_s": began_at + wall - (result["first_at"] + result["loop_s"]),
            "restarts_s": _restarts(lives),
        }
        if (folder / "run").exists():
            result["holdfast"] = _summary(folder / "run")
            if kept is not None:
                shutil.copytree(folder / "run", kept)
        return result


def _restarts(lives: list[dict[str, Any]]) -> list[float]:
    """From each kill to the end of the next life's first batch."""
    times = []
    for before, after in itertools.pairwise(lives):
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


def _execute(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int, Path]:
    log = folder / "output.log"
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise RunFailed(str(error)) from None
        try:
            return process.wait(RUN_LIMIT_S), log
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not done after {RUN_LIMIT_S} s: {_last_words(log)}") from None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of a run outlives it: a supervisor is asked first, so that it can end its own child."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)


def _last_words(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1][:200]
