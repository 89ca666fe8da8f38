"""A storm of kills: the supervisor, the training, or both with all that they started, at named steps of real trainings.

Each run takes many kills. The training itself sends each signal (programs/storm.py), so that a seed gives the same storm again. After
each death of the supervisor comes `holdfast resume`; the run must end with the weights of an unharmed one, bit for bit.
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
    """Of all kills."""


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
class Storm:
    """One run and what came of it."""

    training: str
    planned: list[tuple[int, str]]
    kills: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    identical: bool = False
    attempts: int = 0
    lines: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


def storms_for(
    count: int, seed: int, trainings: tuple[Training, ...] = TRAININGS
) -> list[tuple[Training, list[tuple[int, str]]]]:
    """The same for the same seed. Kinds of kills come equally often."""
    chance = random.Random(f"kills/{seed}")
    shares = [round(count * training.share) for training in trainings[1:]]
    planned = []
    for training, total in zip(trainings, [count - sum(shares), *shares], strict=True):
        left = total
        while left > 0:
            many = min(left, training.kills_a_run)
            steps = sorted(
                chance.sample(range(2, training.steps - training.steps // 10), many)
            )  # none so late that it could end before
            kinds = [TARGETS[number % 3] for number in range(many)]
            chance.shuffle(kinds)
            planned.append((training, list(zip(steps, kinds, strict=True))))
            left -= many
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


def unharmed(training: Training, folder: Path) -> str:
    """The weights that it comes to without Holdfast and without kills."""
    folder.mkdir(parents=True)
    _run([sys.executable, str(HERE / "programs" / training.program)], folder, environment(folder, training, []))
    return (folder / "weights").read_text()


def _run(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int, int]:
    """Its exit status, and its pid."""
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            return process.wait(timeout=900), process.pid
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), process.pid


def weather(training: Training, kills: list[tuple[int, str]], folder: Path, expected: str) -> Storm:
    """One run through its kills."""
    folder.mkdir(parents=True)
    began, began_at = time.monotonic(), time.time()
    storm = Storm(training.name, kills)
    env = environment(folder, training, kills)
    options = ["--dir", "run", "--max-attempts", str(ATTEMPTS), "--backoff", "0", *training.options]
    status, pid = _run(
        [str(HOLDFAST), "run", *options, "--", sys.executable, str(HERE / "programs" / training.program)], folder, env
    )
    supervisors = [pid]
    while status == -signal.SIGKILL and storm.resumes <= len(kills):
        storm.resumes += 1
        status, pid = _run([str(HOLDFAST), "resume", "run", "--max-attempts", str(ATTEMPTS)], folder, env)
        supervisors.append(pid)
    killed = (folder / "killed").read_text().splitlines() if (folder / "killed").exists() else []
    storm.kills = {kind: sum(line.startswith(kind) for line in killed) for kind in TARGETS}
    storm.seconds = time.monotonic() - began
    _judge(storm, folder, status, expected)
    storm.broken += [f"{path} is left over" for path in left_in_memory(supervisors, began_at)]
    return storm


def _judge(storm: Storm, folder: Path, status: int, expected: str) -> None:
    if status != 0:
        storm.broken.append(f"it ended with {status}: {_last(folder / 'output.txt')}")
    if sum(storm.kills.values()) != len(storm.planned):
        storm.broken.append(f"{sum(storm.kills.values())} of {len(storm.planned)} kills happened")
    if storm.resumes != storm.kills["supervisor"] + storm.kills["family"]:
        storm.broken.append(f"{storm.resumes} resumes for {storm.kills} kills")
    weights = (folder / "weights").read_text() if (folder / "weights").exists() else None
    storm.identical = weights == expected
    if not storm.identical:
        storm.broken.append("its weights are not those of an unharmed run" if weights else "it came to no weights")
    if "Traceback (most recent call last)" in (folder / "output.txt").read_text(errors="replace"):
        storm.broken.append("a traceback was printed")
    storm.broken += _torn_lines(storm, folder / "run")
    storm.broken += [f"process {process} is left over" for process in left_over(folder)]


def _torn_lines(storm: Storm, run: Path) -> list[str]:
    """Of the journal every line is whole; of what a killed training wrote itself, all but the last."""
    broken = []
    for path in [run / "journal.jsonl", *run.glob("attempts/*/*.jsonl")]:
        lines = path.read_bytes().split(b"\n")
        if path.name == "journal.jsonl":
            storm.attempts = sum(b'"attempt-started"' in line for line in lines)
        if lines[-1:] == [b""] or path.name != "journal.jsonl":
            lines.pop()
        for line in lines:
            storm.lines += 1
            try:
                whole = isinstance(json.loads(line), dict)
            except ValueError:
                whole = False
            if not whole:
                broken.append(f"{path.relative_to(run)} has a torn line: {line[:80]!r}")
    return broken


def left_over(folder: Path, seconds: float = 5.0) -> list[int]:
    """Processes that still live and have this folder in their environment or among their arguments."""
    deadline = time.monotonic() + seconds
    while (found := marked_by(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [process.pid for process in found]


def marked_by(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [*process.environ().values(), *process.cmdline()]
            gone = process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid()
            if not gone and any(mark in word for word in words):
                found.append(process)
    return found


def left_in_memory(supervisors: list[int], began_at: float) -> list[Path]:
    """Files of these supervisors. An older file of another process that had the same pid is not theirs."""
    names = tuple(f"holdfast-{pid}-" for pid in supervisors)
    found = MEMORY.glob("holdfast-*") if MEMORY.is_dir() else []
    return [path for path in found if path.name.startswith(names) and path.stat().st_mtime >= began_at]


def _last(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:400]


def make_data(folder: Path) -> None:
    """Squares on grey, for YOLO."""
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
) -> list[Storm]:
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as text:
        scratch = Path(text).resolve()
        if any(training.data for training in trainings):
            make_data(scratch / "data")
        expected: dict[str, str] = {}
        for number, training in enumerate(trainings):
            expected[training.name] = unharmed(training, scratch / f"unharmed-{number}")
        planned = storms_for(count, seed, trainings)

        def one(number: int) -> Storm:
            training, kills = planned[number]
            storm = weather(training, kills, scratch / f"run-{number}", expected[training.name])
            notify(
                f"{storm.training}: {sum(storm.kills.values())} kills, {storm.attempts} attempts, {storm.resumes} resumes, identical {storm.identical}, {storm.seconds:.0f} s {storm.broken or ''}"
            )
            return storm

        # The slowest first, so that the lanes end together.
        order = sorted(range(len(planned)), key=lambda number: -planned[number][0].data)
        with ThreadPoolExecutor(lanes) as pool:
            return list(pool.map(one, order))


def part(count: int, seed: int, notify: Any) -> dict[str, Any]:
    began = time.monotonic()
    storms = run(count, seed, notify=notify)
    kinds = {kind: sum(storm.kills[kind] for storm in storms) for kind in TARGETS}
    resumes = sum(storm.resumes for storm in storms)
    names = list(dict.fromkeys(storm.training for storm in storms))
    rows = [
        (
            "kills",
            f"{sum(kinds.values())} in {len(storms)} runs: {', '.join(f'{count} of the {kind}' for kind, count in kinds.items())}",
        ),
        *(
            (f"kills of {name}", str(sum(sum(s.kills.values()) for s in storms if s.training == name)))
            for name in names
        ),
        ("kills: resumed by hand", f"{resumes} of {kinds['supervisor'] + kinds['family']}"),
        ("kills: attempts", str(sum(storm.attempts for storm in storms))),
        ("kills: ended bit-identical", f"{sum(storm.identical for storm in storms)} of {len(storms)} runs"),
        ("kills: lines of the record, all whole", str(sum(storm.lines for storm in storms))),
        ("kills: promises broken", str(sum(len(storm.broken) for storm in storms))),
        ("kills: took", f"{(time.monotonic() - began) / 60:.0f} min"),
    ]
    broken = [f"{storm.training}: {line}" for storm in storms for line in storm.broken]
    return {
        "figures": {"storms": [asdict(storm) for storm in storms], "kinds": kinds, "resumes": resumes},
        "rows": rows,
        "broken": broken,
    }
