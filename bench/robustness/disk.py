"""A disk that is full, for real: a small tmpfs, filled before the run, by the training while it runs, or by a training that then dies.

The run has to end with the right verdict or a sentence. Once there is room again, what was begun has to be resumable.
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
WAYS = ("before", "while", "death", "raise")
"""When the disk fills up: before the run, while the training goes on, and then it goes on, is killed, or raises."""
PAGES = (1, 2, 3, 4, 5, 6, 8, 12, 20)
"""Room for so many pages is left before the run: each file that it begins with is the one that does not fit."""
PAGE = 4096
NO_RIGHT = "not run: no right to mount"


@dataclass
class DiskRun:
    size: str
    how: str
    status: int = 0
    resumed: int | None = None
    broken: list[str] = field(default_factory=list)


def mounted(disk: Path, size: str) -> bool:
    disk.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, check=False
    )
    return done.returncode == 0


def unmount(disk: Path) -> None:
    subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)


def tried(size: str, how: str, folder: Path) -> DiskRun | None:
    """None where nothing may be mounted."""
    disk, marks = folder / "disk", folder / "marks"
    try:
        if not mounted(disk, size):
            return None
    except FileNotFoundError:
        return None
    marks.mkdir()
    (marks / "how").write_text(how)
    found = DiskRun(size, how)
    env = {**os.environ, "MARKS": str(marks), "DISK": str(disk), "OMP_NUM_THREADS": "1"}
    try:
        if how.startswith("before"):
            _fill(disk, int(how.partition(" ")[2] or 0))
        found.status, said = _run(
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
        _judge(found, "run", found.status, said)
        if (marks / "started").exists() and not (marks / "done").exists():
            if found.status == 0:
                found.broken.append("it said that all went well, and the training has not come to its end")
            (disk / "filler").unlink(missing_ok=True)
            found.resumed, said = _run([*HOLDFAST, "resume"], disk, env)
            _judge(found, "resume", found.resumed, said)
            if not (marks / "done").exists():
                found.broken.append(
                    f"resume ended with {found.resumed} and the training has not come to its end: {said.strip()[-300:]}"
                )
        elif not (marks / "started").exists() and found.status == 0:
            found.broken.append("it said that all went well, and the training was never started")
        found.broken += [f"process {pid} is left over" for pid in kills.left_over(folder)]
    finally:
        unmount(disk)
    return found


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


def _judge(found: DiskRun, name: str, status: int, said: str) -> None:
    if status < 0:
        found.broken.append(f"{name} did not end by itself ({status})")
    elif status not in (0, 3, 4) and "holdfast: " not in said and "Traceback" not in said:
        found.broken.append(f"{name} ended with {status} and no sentence: {said.strip()[-300:]}")
    own = said.replace("programs/filling.py", "")
    if "/holdfast/" in own and "Traceback (most recent call last)" in own:
        found.broken.append(f"{name} printed a traceback: {mutations.printed_place(said)}")


def run(
    *, sizes: tuple[str, ...] = SIZES, pages_free: tuple[int, ...] = PAGES, notify=lambda _: None
) -> list[DiskRun] | None:
    found = []
    with tempfile.TemporaryDirectory(prefix="holdfast-disk-") as text:
        cases = [(size, how) for size in sizes for how in WAYS] + [("256k", f"before {pages}") for pages in pages_free]
        for size, how in cases:
            one = tried(size, how, Path(text).resolve() / f"{size}-{how.replace(' ', '-')}")
            if one is None:
                return None
            for line in one.broken:
                notify(f"{size}, {how}: {line}")
            found.append(one)
    return found


def part(notify: Any) -> dict[str, Any]:
    began = time.monotonic()
    found = run(notify=notify)
    if found is None:
        return {"figures": {"not_run": NO_RIGHT}, "rows": [("a full disk", NO_RIGHT)], "broken": []}
    resumed = [one for one in found if one.resumed is not None]
    rows = [
        (
            "a full disk",
            f"{len(found)} runs: full before the run, almost full before it, filled by the training, which goes on, is killed or raises",
        ),
        ("a full disk: resumed once there was room", f"{sum(one.resumed == 0 for one in resumed)} of {len(resumed)}"),
        ("a full disk: promises broken", str(sum(bool(one.broken) for one in found))),
        ("a full disk: took", f"{time.monotonic() - began:.0f} s"),
    ]
    return {
        "figures": {"tried": [asdict(one) for one in found]},
        "rows": rows,
        "broken": [f"{one.size}, {one.how}: {line}" for one in found for line in one.broken],
    }
