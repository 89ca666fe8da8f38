"""Repeated kills of the supervisor, of the training, or of the whole process family, at chosen steps of real trainings.

Each run takes many kills. The training itself sends each signal (programs/storm.py), so that a seed repeats the same kills. After
each kill of the supervisor the bench runs `holdfast resume`. The run must end with the weights of an uninterrupted run, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOLDFAST = Path(sys.executable).with_name("holdfast")
TARGETS = ("training", "supervisor", "family")
TARGET_NAMES = {"family": "process family"}
LANES = 2
ATTEMPTS = 10_000
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Training:
    name: str
    program: str
    steps: int
    options: tuple[str, ...] = ()
    workers: int = 0
    data: bool = False
    kills_a_run: int = 24
    share: float = 0.0
    """Fraction of all kills."""


TRAININGS = (
    Training("a loop under guard", "guarded.py", 300, ("--max-lost-work", "0"), share=0.40),
    Training(
        "a loop under guard, two loader workers",
        "guarded.py",
        300,
        ("--max-lost-work", "0"),
        workers=2,
        kills_a_run=15,
        share=0.10,
    ),
    Training(
        "a loop with its own checkpoints",
        "checkpointed.py",
        300,
        ("--checkpoint", "state.pt", "--resume-with", "--resume {checkpoint}"),
        share=0.40,
    ),
    Training("YOLO11n", "yolo_train.py", 40, ("--max-lost-work", "0"), data=True, kills_a_run=10, share=0.10),
)


@dataclass
class KillRun:
    """The result of one run."""

    training: str
    planned: list[tuple[int, str]]
    kills: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    identical: bool = False
    attempts: int = 0
    lines: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


def plan_runs(
    count: int, seed: int, trainings: tuple[Training, ...] = TRAININGS
) -> list[tuple[Training, list[tuple[int, str]]]]:
    """Plan the kills of each run. The same seed gives the same plan, and each kind of kill is equally frequent."""
    chance = random.Random(f"kills/{seed}")
    shares = [round(count * training.share) for training in trainings[1:]]
    planned = []
    for training, total in zip(trainings, [count - sum(shares), *shares], strict=True):
        left = total
        while left > 0:
            number_of_kills = min(left, training.kills_a_run)
            steps = sorted(
                chance.sample(range(2, training.steps - training.steps // 10), number_of_kills)
            )  # no kill so late that the training could finish before it
            kinds = [TARGETS[number % 3] for number in range(number_of_kills)]
            chance.shuffle(kinds)
            planned.append((training, list(zip(steps, kinds, strict=True))))
            left -= number_of_kills
    return planned


def environment(folder: Path, training: Training, kills: list[tuple[int, str]]) -> dict[str, str]:
    config = {
        "folder": str(folder),
        "kills": kills,
        "session": os.getsid(0),
        "steps": training.steps,
        "workers": training.workers,
        "data": str(folder.parent / "data" / "data.yaml"),
    }
    return {
        **os.environ, "ROBUSTNESS": json.dumps(config), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests" / "light"),
        "YOLO_CONFIG_DIR": str(folder.parent / "yolo"), "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false",
    }  # fmt: skip


def run_uninterrupted(training: Training, folder: Path) -> str:
    """Return the hash of the final weights without Holdfast and without kills."""
    folder.mkdir(parents=True)
    _run([sys.executable, str(HERE / "programs" / training.program)], folder, environment(folder, training, []))
    return (folder / "weights").read_text()


def _run(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int, int]:
    """Run a command. Return its exit status and its pid."""
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            return process.wait(timeout=900), process.pid
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), process.pid


def run_with_kills(training: Training, kills: list[tuple[int, str]], folder: Path, expected: str) -> KillRun:
    """Run a training with its kills and check the result."""
    folder.mkdir(parents=True)
    began, began_at = time.monotonic(), time.time()
    result = KillRun(training.name, kills)
    env = environment(folder, training, kills)
    options = ["--dir", "run", "--max-attempts", str(ATTEMPTS), "--backoff", "0", *training.options]
    status, pid = _run(
        [str(HOLDFAST), "run", *options, "--", sys.executable, str(HERE / "programs" / training.program)], folder, env
    )
    supervisors = [pid]
    while status == -signal.SIGKILL and result.resumes <= len(kills):
        result.resumes += 1
        status, pid = _run([str(HOLDFAST), "resume", "run", "--max-attempts", str(ATTEMPTS)], folder, env)
        supervisors.append(pid)
    killed = (folder / "killed").read_text().splitlines() if (folder / "killed").exists() else []
    result.kills = {kind: sum(line.startswith(kind) for line in killed) for kind in TARGETS}
    result.seconds = time.monotonic() - began
    _judge(result, folder, status, expected)
    result.broken += [f"{path} was left behind" for path in find_shared_memory(supervisors, began_at)]
    return result


def _judge(result: KillRun, folder: Path, status: int, expected: str) -> None:
    if status != 0:
        result.broken.append(f"the run exited with {status}: {_last_lines(folder / 'output.txt')}")
    if sum(result.kills.values()) != len(result.planned):
        result.broken.append(f"{sum(result.kills.values())} of {len(result.planned)} kills happened")
    if result.resumes != result.kills["supervisor"] + result.kills["family"]:
        result.broken.append(f"{result.resumes} resumes for {result.kills} kills")
    weights = (folder / "weights").read_text() if (folder / "weights").exists() else None
    result.identical = weights == expected
    if not result.identical:
        result.broken.append(
            "the weights differ from those of an uninterrupted run" if weights else "the run has no final weights"
        )
    if "Traceback (most recent call last)" in (folder / "output.txt").read_text(errors="replace"):
        result.broken.append("a traceback was printed")
    result.broken += _find_incomplete_lines(result, folder / "run")
    result.broken += [f"process {process} was left behind" for process in find_processes(folder)]


def _find_incomplete_lines(result: KillRun, run: Path) -> list[str]:
    """Every line of the journal must be complete; in files that a killed training wrote, every line except the last."""
    broken = []
    for path in [run / "journal.jsonl", *run.glob("attempts/*/*.jsonl")]:
        lines = path.read_bytes().split(b"\n")
        if path.name == "journal.jsonl":
            result.attempts = sum(b'"attempt-started"' in line for line in lines)
        if lines[-1:] == [b""] or path.name != "journal.jsonl":
            lines.pop()
        for line in lines:
            result.lines += 1
            try:
                whole = isinstance(json.loads(line), dict)
            except ValueError:
                whole = False
            if not whole:
                broken.append(f"{path.relative_to(run)} has an incomplete line: {line[:80]!r}")
    return broken


def find_processes(folder: Path, seconds: float = 5.0) -> list[int]:
    """Return pids of running processes with this folder in their environment or arguments. Wait up to `seconds` for them."""
    deadline = time.monotonic() + seconds
    while (found := find_marked(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [process.pid for process in found]


def find_marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [*process.environ().values(), *process.cmdline()]
            gone = process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid()
            if not gone and any(mark in word for word in words):
                found.append(process)
    return found


def find_shared_memory(supervisors: list[int], began_at: float) -> list[Path]:
    """Return files of these supervisors. An older file belongs to another process that had the same pid."""
    names = tuple(f"holdfast-{pid}-" for pid in supervisors)
    found = MEMORY.glob("holdfast-*") if MEMORY.is_dir() else []
    return [path for path in found if path.name.startswith(names) and path.stat().st_mtime >= began_at]


def _last_lines(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:400]


def make_data(folder: Path) -> None:
    """Create images of squares on grey, for YOLO."""
    from PIL import Image, ImageDraw

    chance = random.Random(0)
    for split, count in (("train", 16), ("val", 2)):
        for number in range(count):
            image = Image.new("RGB", (64, 64), (chance.randrange(100),) * 3)
            left, top = chance.randrange(4, 30), chance.randrange(4, 30)
            ImageDraw.Draw(image).rectangle((left, top, left + 24, top + 24), fill=(250, 200, chance.randrange(255)))
            for kind in ("images", "labels"):
                (folder / kind / split).mkdir(parents=True, exist_ok=True)
            image.save(folder / "images" / split / f"{number}.png")
            (folder / "labels" / split / f"{number}.txt").write_text(
                f"0 {(left + 12) / 64} {(top + 12) / 64} {24 / 64} {24 / 64}\n"
            )
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [square]\n")


def run(
    count: int, seed: int, *, trainings: tuple[Training, ...] = TRAININGS, lanes: int = LANES, notify=lambda _: None
) -> list[KillRun]:
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as text:
        scratch = Path(text).resolve()
        if any(training.data for training in trainings):
            make_data(scratch / "data")
        expected: dict[str, str] = {}
        for number, training in enumerate(trainings):
            expected[training.name] = run_uninterrupted(training, scratch / f"uninterrupted-{number}")
        planned = plan_runs(count, seed, trainings)

        def one(number: int) -> KillRun:
            training, kills = planned[number]
            result = run_with_kills(training, kills, scratch / f"run-{number}", expected[training.name])
            notify(
                f"{result.training}: {sum(result.kills.values())} kills, {result.attempts} attempts, {result.resumes} resumes, identical {result.identical}, {result.seconds:.0f} s {result.broken or ''}"
            )
            return result

        # Start with the slowest, so that all lanes finish at about the same time.
        order = sorted(range(len(planned)), key=lambda number: -planned[number][0].data)
        with ThreadPoolExecutor(lanes) as pool:
            return list(pool.map(one, order))


def part(count: int, seed: int, notify: Any) -> dict[str, Any]:
    began = time.monotonic()
    runs = run(count, seed, notify=notify)
    kinds = {kind: sum(result.kills[kind] for result in runs) for kind in TARGETS}
    resumes = sum(result.resumes for result in runs)
    names = list(dict.fromkeys(result.training for result in runs))
    rows = [
        (
            "kills",
            f"{sum(kinds.values())} in {len(runs)} runs: {', '.join(f'{count} of the {TARGET_NAMES.get(kind, kind)}' for kind, count in kinds.items())}",
        ),
        *((f"kills of {name}", str(sum(sum(s.kills.values()) for s in runs if s.training == name))) for name in names),
        ("kills: resumed with `holdfast resume`", f"{resumes} of {kinds['supervisor'] + kinds['family']}"),
        ("kills: attempts", str(sum(result.attempts for result in runs))),
        ("kills: bit-identical at the end", f"{sum(result.identical for result in runs)} of {len(runs)} runs"),
        ("kills: lines of the record, all complete", str(sum(result.lines for result in runs))),
        ("kills: guarantees violated", str(sum(len(result.broken) for result in runs))),
        ("kills: duration", f"{(time.monotonic() - began) / 60:.0f} min"),
    ]
    broken = [f"{result.training}: {line}" for result in runs for line in result.broken]
    return {
        "figures": {"storms": [asdict(result) for result in runs], "kinds": kinds, "resumes": resumes},
        "rows": rows,
        "broken": broken,
    }
