"""A disk that is really full: a small tmpfs, filled before the run or by the training, which may then crash.

The run must end with the right verdict or an error message. Once there is space again, a run that was started must be resumable.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kills
import mutations

HERE = Path(__file__).resolve().parent
HOLDFAST = [sys.executable, "-m", "holdfast"]
SIZES = ("64k", "512k", "1500k", "3m")
SCENARIOS = ("before", "while", "death", "raise")
"""When the disk fills up: before the run, or during the training, which then continues, is killed or raises."""
PAGES = (1, 2, 3, 4, 5, 6, 8, 12, 20)
"""Free pages before the run. With different numbers, different files at the start of a run do not fit."""
PAGE = 4096
NO_PERMISSION = "not run: no permission to mount"


@dataclass
class DiskRun:
    size: str
    how: str
    status: int = 0
    resumed: int | None = None
    broken: list[str] = field(default_factory=list)


def mount(disk: Path, size: str) -> bool:
    disk.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, check=False
    )
    return done.returncode == 0


def unmount(disk: Path) -> None:
    subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)


def run_case(size: str, how: str, folder: Path) -> DiskRun | None:
    """Run one case. Return None without the permission to mount."""
    disk, marks = folder / "disk", folder / "marks"
    try:
        if not mount(disk, size):
            return None
    except FileNotFoundError:
        return None
    marks.mkdir()
    (marks / "how").write_text(how)
    result = DiskRun(size, how)
    env = {**os.environ, "MARKS": str(marks), "DISK": str(disk), "OMP_NUM_THREADS": "1"}
    try:
        if how.startswith("before"):
            _fill(disk, int(how.partition(" ")[2] or 0))
        result.status, output = _run(
            [
                *HOLDFAST,
                "run",
                "--name",
                "full",
                "--backoff",
                "0",
                "--",
                sys.executable,
                str(HERE / "programs" / "filling.py"),
            ],
            disk,
            env,
        )
        _judge(result, "run", result.status, output)
        if (marks / "started").exists() and not (marks / "done").exists():
            if result.status == 0:
                result.broken.append("it reported success, but the training has not finished")
            (disk / "filler").unlink(missing_ok=True)
            result.resumed, output = _run([*HOLDFAST, "resume"], disk, env)
            _judge(result, "resume", result.resumed, output)
            if not (marks / "done").exists():
                result.broken.append(
                    f"resume exited with {result.resumed}, but the training has not finished: {output.strip()[-300:]}"
                )
        elif not (marks / "started").exists() and result.status == 0:
            result.broken.append("it reported success, but the training was never started")
        result.broken += [f"process {pid} was left behind" for pid in kills.find_processes(folder)]
    finally:
        unmount(disk)
    return result


def _fill(disk: Path, pages: int) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(PAGE)) == PAGE:
            pass
    if pages:
        os.truncate(disk / "filler", max(0, (disk / "filler").stat().st_size // PAGE - pages) * PAGE)


def _run(command: list[str], disk: Path, env: dict[str, str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            cwd=disk,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return -99, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def _judge(result: DiskRun, name: str, status: int, output: str) -> None:
    if status < 0:
        result.broken.append(f"{name} did not exit by itself ({status})")
    elif status not in (0, 3, 4) and "holdfast: " not in output and "Traceback" not in output:
        result.broken.append(f"{name} exited with {status} without an error message: {output.strip()[-300:]}")
    own = output.replace("programs/filling.py", "")
    if "/holdfast/" in own and "Traceback (most recent call last)" in own:
        result.broken.append(f"{name} printed a traceback: {mutations.find_printed_place(output)}")


def run(
    *, sizes: tuple[str, ...] = SIZES, pages_free: tuple[int, ...] = PAGES, notify=lambda _: None
) -> list[DiskRun] | None:
    results = []
    with tempfile.TemporaryDirectory(prefix="holdfast-disk-") as text:
        cases = [(size, how) for size in sizes for how in SCENARIOS] + [
            ("256k", f"before {pages}") for pages in pages_free
        ]
        for size, how in cases:
            one = run_case(size, how, Path(text).resolve() / f"{size}-{how.replace(' ', '-')}")
            if one is None:
                return None
            for line in one.broken:
                notify(f"{size}, {how}: {line}")
            results.append(one)
    return results


def part(notify: Any) -> dict[str, Any]:
    began = time.monotonic()
    results = run(notify=notify)
    if results is None:
        return {"figures": {"not_run": NO_PERMISSION}, "rows": [("full disk", NO_PERMISSION)], "broken": []}
    resumed = [one for one in results if one.resumed is not None]
    rows = [
        (
            "full disk",
            f"{len(results)} runs: full before the run, almost full before it, or filled by the training, which continues, is killed or raises",
        ),
        ("full disk: resumed once there was space", f"{sum(one.resumed == 0 for one in resumed)} of {len(resumed)}"),
        ("full disk: guarantees violated", str(sum(bool(one.broken) for one in results))),
        ("full disk: duration", f"{time.monotonic() - began:.0f} s"),
    ]
    return {
        "figures": {"tried": [asdict(one) for one in results]},
        "rows": rows,
        "broken": [f"{one.size}, {one.how}: {line}" for one in results for line in one.broken],
    }
