"""Disk faults: a small C library (fault_library.c) makes a chosen system call of the supervisor on the run folder fail.

First, a run without a fault lists the calls. Then each case makes one of them fail, once, a few times or from then on, with an
error drawn from the seed. The run must end with the right verdict or an error message, and a started run must be resumable.
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
"""The first process must be the supervisor: a script that starts it would get the fault instead."""
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
ERRORS_OF_CALL = {
    "write": ("ENOSPC", "EIO", "EINTR", "short", "EDQUOT"), "pwrite": ("ENOSPC", "EIO", "EINTR", "short"), "fsync": ("EIO", "ENOSPC", "EINTR"),
    "open": ("ENOSPC", "EMFILE", "EIO", "EINTR"), "rename": ("ENOSPC", "EIO"), "ftruncate": ("EIO", "ENOSPC"), "mmap": ("EIO", "EMFILE"),
    "mkdir": ("ENOSPC", "EIO"), "unlink": ("EIO",),
}  # fmt: skip
SECONDS = 60.0
NOTHING_TO_RESUME = 2
"""Exit status of `resume` if the run has finished."""


@dataclass
class Fault:
    call: str
    number: int
    error: str
    times: int
    """The number of calls of this name that fail from there on; 0: all."""
    path: str = ""

    @property
    def description(self) -> str:
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


def why_not_possible() -> str | None:
    """Return why faults cannot be injected on this machine, or None."""
    if not sys.platform.startswith("linux"):
        return "not run: LD_PRELOAD needs Linux"
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


def list_calls(folder: Path, library: Path) -> list[tuple[str, str]]:
    """Return (name, path) of every call on the run folder, in order, in a run without a fault."""
    lay_out(folder)
    done = _run_command(command(), folder, environment(folder, library, None, log=True))
    if done[0] != 0:
        raise RuntimeError(f"a run without a fault exited with {done[0]}: {done[1]}")
    lines = (folder / "calls").read_text(errors="replace").splitlines()
    return [(name, path) for name, _, path in (line.partition(" ") for line in lines)]


def draw_faults(calls: list[tuple[str, str]], count: int, seed: int) -> list[Fault]:
    """Draw faults. Each pair of call and error is about equally frequent; which call of that name fails is random."""
    chance = random.Random(f"faults/{seed}")
    kinds = sorted({name for name, _ in calls} & set(ERRORS_OF_CALL))
    pairs = [(name, error) for name in kinds for error in ERRORS_OF_CALL[name]]
    faults = []
    for number in range(count):
        name, error = pairs[number % len(pairs)]
        paths = [path for call, path in calls if call == name]
        at = chance.randrange(len(paths))
        times = chance.choice([1, 1, 3]) if error == "EINTR" else chance.choice([1, 1, 5, 0])
        faults.append(Fault(name, at + 1, error, times, path=paths[at].rpartition("/runs/")[2] or paths[at]))
    return faults


def _run_command(
    command: list[str], folder: Path, env: dict[str, str], seconds: float = SECONDS
) -> tuple[int | None, str]:
    """Run a command. Return its exit status (None after a timeout) and its output."""
    process = subprocess.Popen(
        command,
        cwd=folder / "work",
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=seconds)[0]
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0].decode(errors="replace")


def run_case(fault: Fault, folder: Path, library: Path) -> FaultRun:
    lay_out(folder)
    result = FaultRun(fault)
    result.status, result.said = _run_command(command(), folder, environment(folder, library, fault))
    _judge(result, "run", result.status, result.said)
    marks = folder / "marks"
    if (marks / "started").exists():
        if result.status == 0 and not (marks / "done").exists():
            result.broken.append("it reported success, but the training has not finished")
        if result.status != 0 or not (marks / "done").exists():
            result.resumed, output = _run_command([*HOLDFAST, "resume"], folder, environment(folder, None, None))
            _judge(result, "resume", result.resumed, output)
            over = result.resumed == NOTHING_TO_RESUME and (marks / "done").exists()
            if not (marks / "done").exists() or not (over or result.resumed == 0):
                finished = "has" if (marks / "done").exists() else "has not"
                result.broken.append(
                    f"resume exited with {result.resumed}, the training {finished} finished: {_short(output)}"
                )
        status, output = _run_command([*HOLDFAST, "status"], folder, environment(folder, None, None))
        _judge(result, "status", status, output)
    elif result.status == 0:
        result.broken.append("it reported success, but the training was never started")
    result.broken += [f"process {pid} was left behind" for pid in kills.find_processes(folder)]
    return result


def _judge(result: FaultRun, name: str, status: int | None, output: str) -> None:
    if status is None:
        result.broken.append(f"{name} did not exit within {SECONDS:.0f} s")
    elif status < 0:
        result.broken.append(f"{name} was killed by signal {-status}")
    elif status not in (0, 3, 4) and "holdfast: " not in output and "Traceback" not in output:
        result.broken.append(f"{name} exited with {status} without an error message: {_short(output)}")
    if "Traceback (most recent call last)" in output:
        result.broken.append(f"{name} printed a traceback: {mutations.find_printed_place(output)}")


def _short(output: str) -> str:
    return " / ".join(line.strip() for line in output.strip().splitlines()[-3:])[:400]


def run(count: int, seed: int, *, lanes: int = LANES, notify=lambda _: None) -> tuple[list[FaultRun], dict[str, int]]:
    """Return the result of each case, and the number of calls of each name in a run without a fault."""
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as text:
        scratch = Path(text).resolve()
        library = build(scratch)
        calls = list_calls(scratch / "calls", library)
        faults = draw_faults(calls, count, seed)

        def run_number(number: int) -> FaultRun:
            folder = scratch / f"fault-{number}"
            result = run_case(faults[number], folder, library)
            for line in result.broken:
                notify(f"{result.fault.description}: {line}")
            if not result.broken:
                shutil.rmtree(folder, ignore_errors=True)
            return result

        with ThreadPoolExecutor(lanes) as pool:
            return list(pool.map(run_number, range(count))), dict(Counter(name for name, _ in calls))


def part(count: int, seed: int, notify: Any) -> dict[str, Any]:
    why = why_not_possible()
    if why:
        return {"figures": {"not_run": why}, "rows": [("disk faults", why)], "broken": []}
    began = time.monotonic()
    result, calls = run(count, seed, notify=notify)
    by_call = Counter(one.fault.call for one in result)
    by_error = Counter(one.fault.error for one in result)
    statuses = Counter(str(one.status) for one in result)
    rows = [
        ("disk faults", f"{len(result)}: {', '.join(f'{count} of {name}' for name, count in by_call.items())}"),
        ("disk faults: errors", ", ".join(f"{name}: {count}" for name, count in by_error.items())),
        ("disk faults: exit statuses", ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))),
        (
            "disk faults: resumed afterwards",
            f"{sum(one.resumed == 0 for one in result)} of {sum(one.resumed is not None for one in result)}",
        ),
        ("disk faults: guarantees violated", str(sum(bool(one.broken) for one in result))),
        ("disk faults: duration", f"{(time.monotonic() - began) / 60:.0f} min"),
    ]
    broken = [f"{one.fault.description}: {line}" for one in result for line in one.broken]
    return {"figures": {"tried": [asdict(one) for one in result], "calls": calls}, "rows": rows, "broken": broken}
