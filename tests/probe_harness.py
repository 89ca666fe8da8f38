"""Runs a training script under the probe, as the supervisor would, and hands back what the probe wrote."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

import holdfast.probe
from holdfast.probe.holdfast_probe import heartbeat, protocol
from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Iterator

LIGHT = pathlib.Path(__file__).with_name("light")
CHILD = pathlib.Path(holdfast.probe.__file__).parent


@dataclass
class Probed:
    """What one run under the probe left behind."""

    folder: pathlib.Path
    code: int
    out: str
    err: str
    by_file: dict[str, list] = field(default_factory=dict)
    torn: int = 0
    """Lines that are no events: a full disk may leave one."""

    def of(self, kind, rank=0):
        """A rank's events of one kind."""
        return [event for event in self.by_file.get(f"rank-{rank}.jsonl", []) if isinstance(event, kind)]

    @property
    def files(self):
        return sorted(name for name in self.by_file if name.startswith("rank-"))

    @property
    def beats(self):
        return heartbeat.read(str(self.folder / "heartbeat"))

    @property
    def coverage(self):
        return self.of(events.Coverage)[-1]

    @property
    def steps(self):
        return [event.step for event in self.of(events.Step)]

    @property
    def losses(self):
        return [event.loss for event in self.of(events.Step)]

    @property
    def notes(self):
        return [note.what for note in self.of(events.ProbeNote)]


def environment(folder: pathlib.Path, **more: str) -> dict[str, str]:
    """What the supervisor puts into the child's environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    given = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{CHILD}{os.pathsep}{LIGHT}",
        protocol.PROBE_PATH: str(CHILD),
        protocol.ATTEMPT_DIR: str(folder),
        protocol.HEARTBEAT: str(folder / "heartbeat"),
        protocol.LOCK: str(folder / "lock"),
    }
    return {**clean, **given, **more}


def bare_environment() -> dict[str, str]:
    probed = environment(pathlib.Path(os.devnull), PYTHONPATH=str(LIGHT))
    return {name: value for name, value in probed.items() if not name.startswith("HOLDFAST_")}


@contextlib.contextmanager
def attempt(folder: pathlib.Path, *, in_memory: bool = True) -> Iterator[pathlib.Path]:
    """An attempt's folder with a heartbeat and a lock that is held, as by a living supervisor."""
    folder.mkdir(parents=True, exist_ok=True)
    heartbeat.create(str(folder / "heartbeat"), in_memory)
    try:
        with (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        heartbeat.settle(str(folder / "heartbeat"))


def script(folder: pathlib.Path, text: str, name: str = "train.py") -> pathlib.Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def collect(folder: pathlib.Path, code: int = 0, out: str = "", err: str = "") -> Probed:
    probed = Probed(folder, code, out, err)
    for path in sorted(folder.glob("*.jsonl")):
        decoded = probed.by_file.setdefault(path.name, [])
        for line in path.read_bytes().splitlines():
            try:
                decoded.append(events.decode(line))
            except msgspec.MsgspecError:
                probed.torn += 1
    return probed


def run(
    tmp_path: pathlib.Path,
    text: str,
    *,
    command: list[str] | None = None,
    fails: bool = False,
    in_memory: bool = True,
    **more: str,
) -> Probed:
    """Runs `text` under the probe and waits for it. With `command`, that runs with the script's path appended."""
    with attempt(tmp_path / "attempt", in_memory=in_memory) as folder:
        path = script(tmp_path, text)
        done = subprocess.run(
            [*(command or [sys.executable]), str(path)],
            env=environment(folder, **{**_weight(text, CHILD), **more}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=240,
            check=False,
        )
        assert fails or done.returncode == 0, done.stderr
        probed = collect(folder, done.returncode, done.stdout, done.stderr)
    assert fails or not [note for note in probed.notes if "failed" in note], probed.of(events.ProbeNote)
    return probed


def _weight(text: str, *before: pathlib.Path) -> dict[str, str]:
    """A training that compiles gets torch's compiler from the start."""
    return {"PYTHONPATH": os.pathsep.join(map(str, before))} if "torch.compile" in text else {}


def run_bare(tmp_path: pathlib.Path, text: str, *, command: list[str] | None = None) -> str:
    """The same without any probe; its standard output."""
    path = script(tmp_path, text, "bare.py")
    done = subprocess.run(
        [*(command or [sys.executable]), str(path)],
        env={**bare_environment(), **_weight(text)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
