"""Faults of the disk: a chosen system call of the supervisor on the run folder fails, by a small C library (fault_library.c).

First a run without a fault lists the calls; then each case lets one of them fail, once, a few times or from then on, with an
error drawn from the seed. The run has to end with the right verdict or a sentence, and what it began has to be resumable.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kills
import mutations

HERE = Path(__file__).resolve().parent
HOLDFAST = [sys.executable, "-m", "holdfast"]
"""The first process is the supervisor itself: a script that starts it would take the fault."""
LANES = 2
SHORT = -1
ERRORS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EMFILE": errno.EMFILE,
    "EINTR": errno.EINTR,
    "EDQUOT": errno.EDQUOT,
    "short": SHORT,
}
OF_CALL = {
    "write": ("ENOSPC", "EIO", "EINTR", "short", "EDQUOT"), "pwrite": ("ENOSPC", "EIO", "EINTR", "short"), "fsync": ("EIO", "ENOSPC", "EINTR"),
    "open": ("ENOSPC", "EMFILE", "EIO", "EINTR"), "rename": ("ENOSPC", "EIO"), "ftruncate": ("EIO", "ENOSPC"), "mmap": ("EIO", "EMFILE"),
    "mkdir": ("ENOSPC", "EIO"), "unlink": ("EIO",),
}  # fmt: skip
SECONDS = 60.0
NOTHING_TO_RESUME = 2
"""Exit status of `resume` where a run has come to its end."""


@dataclass
class Fault:
    call: str
    number: int
    error: str
    times: int
    """How many calls of this name fail from there on; 0: all."""
    path: str = ""

    @property
    def words(self) -> str:
        how = "every further" if self.times == 0 else f"the next {self.times}" if self.times > 1 else "one"
        return f"{self.call} number {self.number} fails with {self.error}, {how} ({self.path})"


@dataclass
class FaultRun:
    fault: Fault
    status: int | None = None
    resumed: int | None = None
    broken: list[str] = field(default_factory=list)
    said: str = ""


def compiler() -> str | None:
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def not_possible() -> str | None:
    """Why the faults cannot be injected here."""
    if not sys.platform.startswith("linux"):
        return "not run: LD_PRELOAD is of Linux"
    return None if compiler() else "not run: no C compiler"


def build(folder: Path) -> Path:
    library = folder / "fault_library.so"
    subprocess.run(
        [str(compiler()), "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(HERE / "fault_library.c"), "-ldl"],
        check=True,
    )
    return library


def environment(folder: Path, library: Path | None, fault: Fault | None, *, log: bool = False) -> dict[str, str]:
    env = {**os.environ, "MARKS": str(folder / "marks"), "OMP_NUM_THREADS": "1"}
    if library is not None:
        env |= {
            "LD_PRELOAD": str(library),
            "FAULT_FOLDER": str(folder / "work" / ".holdfast"),
            "FAULT_ALSO": "/dev/shm/holdfast-",
            "FAULT_MARK": str(folder / "mark"),
        }
    if fault is not None:
        env["FAULT"] = f"{fault.call} {fault.number} {ERRORS[fault.error]} {fault.times}"
    if log:
        env["FAULT_LOG"] = str(folder / "calls")
    return env


def command() -> list[str]:
    options = ["--backoff", "0", "--checkpoint", "state.pt", "--resume-with", "--resume {checkpoint}"]
    return [*HOLDFAST, "run", "--name", "run", *options, "--", sys.executable, str(HERE / "programs" / "short.py")]


def lay_out(folder: Path) -> None:
    (folder / "work").mkdir(parents=True)
    (folder / "marks").mkdir()


def calls_of(folder: Path, library: Path) -> list[tuple[str, str]]:
    """(name, path) of every call on the run folder, in order, in a run without a fault."""
    lay_out(folder)
    done = _started(command(), folder, environment(folder, library, None, log=True))
    if done[0] != 0:
        raise RuntimeError(f"a run without a fault ended with {done[0]}: {done[1]}")
    lines = (folder / "calls").read_text(errors="replace").splitlines()
    return [(name, path) for name, _, path in (line.partition(" ") for line in lines)]


def drawn(calls: list[tuple[str, str]], count: int, seed: int) -> list[Fault]:
    """Every kind of call and error comes about equally often; which of its calls fails is drawn."""
    chance = random.Random(f"faults/{seed}")
    kinds = sorted({name for name, _ in calls} & set(OF_CALL))
    pairs = [(name, error) for name in kinds for error in OF_CALL[name]]
    faults = []
    for number in range(count):
        name, error = pairs[number % len(pairs)]
        paths = [path for call, path in calls if call == name]
        at = chance.randrange(len(paths))
        times = chance.choice([1, 1, 3]) if error == "EINTR" else chance.choice([1, 1, 5, 0])
        faults.append(Fault(name, at + 1, error, times, path=paths[at].rpartition("/runs/")[2] or paths[at]))
    return faults


def _started(words: list[str], folder: Path, env: dict[str, str], seconds: float = SECONDS) -> tuple[int | None, str]:
    """Its exit status, None where it did not end, and all it printed."""
    process = subprocess.Popen(
        words,
        cwd=folder / "work",
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=seconds)[0]
        return process.returncode, said.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0].decode(errors="replace")


def tried(fault: Fault, folder: Path, library: Path) -> FaultRun:
    lay_out(folder)
    found = FaultRun(fault)
    found.status, found.said = _started(command(), folder, environment(folder, library, fault))
    _judge(found, "run", found.status, found.said)
    marks = folder / "marks"
    if (marks / "started").exists():
        if found.status == 0 and not (marks / "done").exists():
            found.broken.append("it said that all went well, and the training has not come to its end")
        if found.status != 0 or not (marks / "done").exists():
            found.resumed, said = _started([*HOLDFAST, "resume"], folder, environment(folder, None, None))
            _judge(found, "resume", found.resumed, said)
            over = found.resumed == NOTHING_TO_RESUME and (marks / "done").exists()
            if not (marks / "done").exists() or not (over or found.resumed == 0):
                ended = "has" if (marks / "done").exists() else "has not"
                found.broken.append(
                    f"resume ended with {found.resumed}, the training {ended} come to its end: {_short(said)}"
                )
        status, said = _started([*HOLDFAST, "status"], folder, environment(folder, None, None))
        _judge(found, "status", status, said)
    elif found.status == 0:
        found.broken.append("it said that all went well, and the training was never started")
    found.broken += [f"process {pid} is left over" for pid in kills.left_over(folder)]
    return found


def _judge(found: FaultRun, name: str, status: int | None, said: str) -> None:
    if status is None:
        found.broken.append(f"{name} did not end within {SECONDS:.0f} s")
    elif status < 0:
        found.broken.append(f"{name} was ended by signal {-status}")
    elif status not in (0, 3, 4) and "holdfast: " not in said and "Traceback" not in said:
        found.broken.append(f"{name} ended with {status} and no sentence: {_short(said)}")
    if "Traceback (most recent call last)" in said:
        found.broken.append(f"{name} printed a traceback: {mutations.printed_place(said)}")


def _short(said: str) -> str:
    return " / ".join(line.strip() for line in said.strip().splitlines()[-3:])[:400]


def run(count: int, seed: int, *, lanes: int = LANES, notify=lambda _: None) -> tuple[list[FaultRun], dict[str, int]]:
    """What came of each, and how many calls of each name an unharmed run makes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as text:
        scratch = Path(text).resolve()
        library = build(scratch)
        calls = calls_of(scratch / "calls", library)
        faults = drawn(calls, count, seed)

        def one(number: int) -> FaultRun:
            folder = scratch / f"fault-{number}"
            found = tried(faults[number], folder, library)
            for line in found.broken:
                notify(f"{found.fault.words}: {line}")
            if not found.broken:
                shutil.rmtree(folder, ignore_errors=True)
            return found

        with ThreadPoolExecutor(lanes) as pool:
            return list(pool.map(one, range(count))), dict(Counter(name for name, _ in calls))


def part(count: int, seed: int, notify: Any) -> dict[str, Any]:
    why = not_possible()
    if why:
        return {"figures": {"not_run": why}, "rows": [("faults of the disk", why)], "broken": []}
    began = time.monotonic()
    found, calls = run(count, seed, notify=notify)
    by_call = Counter(one.fault.call for one in found)
    by_error = Counter(one.fault.error for one in found)
    statuses = Counter(str(one.status) for one in found)
    rows = [
        ("faults of the disk", f"{len(found)}: {', '.join(f'{count} of {name}' for name, count in by_call.items())}"),
        ("faults: errors", ", ".join(f"{name}: {count}" for name, count in by_error.items())),
        ("faults: exit statuses", ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))),
        (
            "faults: resumed afterwards",
            f"{sum(one.resumed == 0 for one in found)} of {sum(one.resumed is not None for one in found)}",
        ),
        ("faults: promises broken", str(sum(bool(one.broken) for one in found))),
        ("faults: took", f"{(time.monotonic() - began) / 60:.0f} min"),
    ]
    broken = [f"{one.fault.words}: {line}" for one in found for line in one.broken]
    return {"figures": {"tried": [asdict(one) for one in found], "calls": calls}, "rows": rows, "broken": broken}
