"""One dry run from its start to its end, and what it said."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.preflight.dry_run import landlock
from holdfast.preflight.dry_run import scratch as scratches
from holdfast.preflight.dry_run.environment import command_of, environment, ultralytics_settings, writable
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.exit_evidence import last_words
from holdfast.process.helper_processes import helpers, terminate_processes
from holdfast.process.sensors import Sensors
from holdfast.schema.errors import HoldfastError
from holdfast.schema.events import Step
from holdfast.storage.journal import Tail
from holdfast.storage.safe_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.events import AnyEvent, Sample

LOOK_S = 0.1
SAMPLE_S = 0.5
GRACE_S = 2.0
MAX_OUTPUT = 256 << 10
"""Bytes of what it printed that are read, from the end."""
MAX_LINES = 20_000
MAX_OUTPUT = 64 << 20
"""Bytes: what prints more than that in its first steps is ended."""


@dataclass(frozen=True)
class DryRunResult:
    """What came of it."""

    command: Sequence[str]
    lines: Sequence[Mapping[str, Any]] = ()
    """Of dry_run.jsonl."""
    op_check: Sequence[Mapping[str, Any]] = ()
    records: Sequence[Mapping[str, Any]] = ()
    """Of steps-*.jsonl, where steps were recorded."""
    events: Sequence[AnyEvent] = ()
    """What the probe told."""
    python_started: bool = False
    code: int | None = None
    """None where it was ended, because the time was over."""
    words: Sequence[str] = ()
    """The last that it printed."""
    seconds: float = 0.0
    changed: Sequence[str] = ()
    """Files of the user's folder that are not as they were."""
    held: int = 0
    """Bytes of memory that all of its processes held at most."""
    copied: int = 0
    linked: Sequence[str] = field(default=())
    trouble: str = ""
    """Why it could not be held at all."""
    unconfined: str = ""
    """Why it was not kept from writing elsewhere; empty where it was."""

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line.get("event") == event]

    def one(self, event: str) -> Mapping[str, Any] | None:
        return next(iter(self.of(event)), None)

    @property
    def steps(self) -> int:
        return len(self.of("dry-run-step"))

    @property
    def steps_elsewhere(self) -> int:
        """Steps that the probe saw in a process that the dry run does not lead, as `mp.spawn` starts them."""
        return 0 if self.steps else sum(isinstance(event, Step) for event in self.events)

    @property
    def ended(self) -> Mapping[str, Any] | None:
        """The dry run's own end; None where it was killed, or never began."""
        return self.one("dry-run-ended")

    @property
    def by_itself(self) -> bool:
        """The training ended before the dry run did."""
        ended = self.ended
        return self.code is not None and (ended is None or ended["why"] == "the training ended by itself")

    @property
    def made(self) -> list[str]:
        """Files that it made outside of the scratch."""
        return [line["path"] for line in self.of("file") if line["what"] == "made"]

    @property
    def refused(self) -> list[str]:
        """Files of the user's that it was kept from changing or making."""
        return [line["path"] for line in self.of("file") if line["what"] in ("refused", "denied")]

    @property
    def kept_from(self) -> str:
        """What it was kept from writing, where that may be why it ended: it came upon an error that it did not expect."""
        lines = self.of("file")
        denied = [line["path"] for line in lines if line["what"] == "denied"]
        raised = [line["path"] for line in lines if line["what"] == "refused" and line["how"] != "torch.save"]
        return next(iter([*denied, *([] if self.steps else raised)]), "")

    @property
    def beyond_python(self) -> list[str]:
        """Programs that it started and databases that it opened: what they write is not seen."""
        return [line["path"] for line in self.of("file") if line["what"] == "beyond"]


def run_in_scratch(
    context: CheckContext,
    asked: Mapping[str, Any],
    seconds: float,
    *,
    device: str | None = None,
    notify: Callable[[int], None] | None = None,
    enough: Callable[[Path], bool] | None = None,
) -> DryRunResult:
    """Runs the training of this ground as far as `asked` says (see `holdfast_probe.dry_run`), at most so many seconds, or until
    `enough(folder)` of what it wrote.

    `device` is set in the place of its own, where that is known to be a setting. Nothing of it is left when this returns.
    """
    began = time.monotonic()
    try:
        command = command_of(context)
        with helpers.scratch() as (folder, mark):
            return _held(context, command, folder, mark, asked, began + seconds, device, notify, enough)
    except (OSError, HoldfastError) as error:
        why = error.what if isinstance(error, HoldfastError) else str(error)
        return DryRunResult(tuple(context.command), trouble=why, seconds=time.monotonic() - began)


def _held(
    context: CheckContext,
    command: list[str],
    root: Path,
    mark: Mapping[str, str],
    asked: Mapping[str, Any],
    until: float,
    device: str | None,
    notify: Callable[[int], None] | None,
    enough: Callable[[Path], bool] | None,
) -> DryRunResult:
    began, started_at = time.monotonic(), time.time()
    attempt = root / "attempt"
    attempt.mkdir()
    before = scratches.times(context.cwd)
    scratch = scratches.make(context.cwd, root / "root")
    settings = ultralytics_settings(context, root, scratch)
    confined = writable(context, root) if context.confines else None
    unconfined = "it was not asked for" if confined is None else landlock.why_not() or ""
    if unconfined:
        confined = None
    words = [command[0], *(scratch.inside(word) for word in command[1:])]
    if device is not None:
        words, settings = on_device(words, device), {**settings, "device": device}
    variables = {**environment(context, root, attempt, asked, settings, confined), **mark}
    with (root / "output").open("wb") as output:
        process = subprocess.Popen(
            words if confined is None else confined_command(words, confined.folders, root),
            cwd=scratch.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        sensors = Sensors(context.machine, lambda: [process.pid], root, time.time)
        try:
            ended, held = _waited(process, attempt, root / "output", until, notify, enough, sensors)
        finally:
            code = _end(process, attempt, started_at)
    if confined is not None:
        _raise_if_not_started(root)
        unconfined = _told(root / landlock.UNCONFINED)[1]
    return written_in(
        attempt,
        command=tuple(words),
        code=code if ended else None,
        unconfined=unconfined,
        words=_words(root / "output", scratch),
        seconds=time.monotonic() - began,
        held=held,
        changed=scratches.changed(before, scratches.times(context.cwd)),
        copied=scratch.copied,
        linked=tuple(scratch.linked),
    )


def confined_command(words: Sequence[str], folders: Sequence[str], update: Path) -> list[str]:
    """The command that confines itself and becomes this one."""
    asked = json.dumps({"command": list(words), "folders": list(folders), "tells": str(update)})
    return [sys.executable, "-I", "-S", "-c", Path(landlock.__file__).read_text(), asked]


def _raise_if_not_started(root: Path) -> None:
    number, why = _told(root / landlock.FAILED)
    if why:
        raise OSError(number, why)
    if not (root / landlock.REACHED).exists():
        raise OSError(errno.EIO, "it could not be confined; check with --no-confine")


def _told(path: Path) -> tuple[int, str]:
    """What the program that confines itself could not do; empty where it could."""
    try:
        number, why = json.loads(read_bytes(path, 4096))
        return int(number), str(why)
    except FileNotFoundError:
        return 0, ""
    except (OSError, ValueError, TypeError):
        return 0, "it cannot be told"


def written_in(attempt: Path, **known: Any) -> DryRunResult:
    """What the child wrote to its folder, with what else is known."""
    return DryRunResult(
        lines=_json_lines(attempt.glob("dry_run*.jsonl")),
        op_check=_json_lines(attempt.glob("op_check*.jsonl")),
        records=_json_lines(attempt.glob("steps-*.jsonl")),
        events=_events(attempt / "rank-0.jsonl"),
        python_started=(attempt / "interpreters.jsonl").exists(),
        **known,
    )


def device_word(command: Sequence[str]) -> int | None:
    """Which word names the device: `device=mps`, `--device=mps`, or the one after `--device`."""
    for n, word in enumerate(command):
        name = word.lstrip("-").partition("=")[0]
        if name != "device":
            continue
        if "=" in word:
            return n
        if word.startswith("--") and n + 1 < len(command):
            return n + 1
    return None


def on_device(command: Sequence[str], device: str) -> list[str]:
    """The same command with another device, where it names one."""
    words, n = list(command), device_word(command)
    if n is not None:
        name, equals, _ = words[n].partition("=")
        words[n] = f"{name}={device}" if equals else device
    return words


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Seen without reaping it: until then nobody else can have its pid, nor its session."""
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _end(process: subprocess.Popen[bytes], attempt: Path, started_at: float) -> int:
    """With all that it started: also what left its session and outlived its parent, which the probe's variable tells. Its exit code."""
    below: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        below.update(psutil.Process(process.pid).children(recursive=True))

    def is_ours(other: psutil.Process) -> bool:
        if other in below or os.getsid(other.pid) == process.pid:
            return True
        return bool(other.environ().get(protocol.ATTEMPT_DIR) == str(attempt))

    terminate_processes(is_ours, started_at, GRACE_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _waited(
    process: subprocess.Popen[bytes],
    attempt: Path,
    output: Path,
    until: float,
    notify: Callable[[int], None] | None,
    enough: Callable[[Path], bool] | None,
    sensors: Sensors,
) -> tuple[bool, int]:
    """Whether it came to an end of its own; and what it held at most."""
    held, sample_at, before = 0, 0.0, sensors.sample().available
    while (now := time.monotonic()) < until:
        if _has_ended(process):
            return True, held
        time.sleep(LOOK_S)
        if now >= sample_at:
            held, sample_at = max(held, _held_now(process.pid, sensors.sample(), before)), now + SAMPLE_S
        if notify is not None:
            notify(lines_with(b'"dry-run-step"', attempt / "dry_run.jsonl"))
        if output.stat().st_size > MAX_OUTPUT or (enough is not None and enough(attempt)):
            break
    return False, held


def _held_now(pid: int, sample: Sample, before: int) -> int:
    """Forked processes share pages that the sample counts for each: no more than is gone from the machine, unless others gave back some
    meanwhile; and no less than the first process holds by itself.
    """
    own = 0
    with contextlib.suppress(psutil.Error):
        own = int(psutil.Process(pid).memory_info().rss)
    return max(own, min(sample.rss, max(0, before - sample.available)))


def lines_with(word: bytes, path: Path) -> int:
    """Of what it has written so far."""
    try:
        return path.read_bytes().count(word)
    except OSError:
        return 0


def _json_lines(paths: Any) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for path in sorted(paths):
        for line in path.read_bytes().splitlines()[:MAX_LINES]:
            with contextlib.suppress(ValueError):  # one that the end cut off
                decoded = json.loads(line)
                if isinstance(decoded, dict):
                    found.append(decoded)
    return tuple(found)


def _events(path: Path) -> tuple[AnyEvent, ...]:
    tail = Tail(path)
    found: list[AnyEvent] = []
    while not tail.at_end:
        found += tail.read()
    return tuple(found)


def _words(path: Path, scratch: scratches.Scratch) -> tuple[str, ...]:
    """As it would have been printed in the user's own folder."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_OUTPUT))
        text = file.read().decode("utf-8", "replace").replace(str(scratch.folder), str(scratch.original))
    return tuple(last_words([line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]))
