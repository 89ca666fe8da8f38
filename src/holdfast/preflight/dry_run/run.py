"""One dry run from start to end, and its results."""

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
from holdfast.preflight.dry_run.environment import build_environment, find_writable, get_command, get_settings
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.exit_evidence import last_lines
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

POLL_S = 0.1
SAMPLE_S = 0.5
GRACE_S = 2.0
MAX_LAST_OUTPUT = 256 << 10
"""Bytes at the end of the output that are read."""
MAX_LINES = 20_000
MAX_OUTPUT = 64 << 20
"""Bytes: a training that prints more than this in its first steps is killed."""


@dataclass(frozen=True)
class DryRunResult:
    """The results of a dry run."""

    command: Sequence[str]
    lines: Sequence[Mapping[str, Any]] = ()
    """The lines of dry_run.jsonl."""
    op_check: Sequence[Mapping[str, Any]] = ()
    records: Sequence[Mapping[str, Any]] = ()
    """The lines of steps-*.jsonl, if steps were recorded."""
    events: Sequence[AnyEvent] = ()
    """The events of the probe."""
    python_started: bool = False
    code: int | None = None
    """None if the training was killed because the time was over."""
    last_lines: Sequence[str] = ()
    """The last lines that it printed."""
    seconds: float = 0.0
    changed: Sequence[str] = ()
    """Files in the user's folder that changed."""
    peak_memory: int = 0
    """Peak memory of all its processes, in bytes."""
    copied: int = 0
    linked: Sequence[str] = field(default=())
    start_error: str = ""
    """Why the training could not be started."""
    unconfined: str = ""
    """Why writes elsewhere were not prevented; empty if they were."""

    def select(self, event: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line.get("event") == event]

    def first(self, event: str) -> Mapping[str, Any] | None:
        return next(iter(self.select(event)), None)

    @property
    def steps(self) -> int:
        return len(self.select("dry-run-step"))

    @property
    def steps_elsewhere(self) -> int:
        """Steps in a process that the dry run does not control, such as a child of `mp.spawn`."""
        return 0 if self.steps else sum(isinstance(event, Step) for event in self.events)

    @property
    def ended(self) -> Mapping[str, Any] | None:
        """The event at the end of the dry run; None if it was killed or never started."""
        return self.first("dry-run-ended")

    @property
    def ended_alone(self) -> bool:
        """Whether the training exited before the dry run ended it."""
        ended = self.ended
        return self.code is not None and (ended is None or ended["why"] == "the training ended by itself")

    @property
    def created(self) -> list[str]:
        """Files created outside the scratch folder."""
        return [line["path"] for line in self.select("file") if line["what"] == "made"]

    @property
    def refused_paths(self) -> list[str]:
        """Files that it was prevented from changing or creating."""
        return [line["path"] for line in self.select("file") if line["what"] in ("refused", "denied")]

    @property
    def blocked_path(self) -> str:
        """A blocked write that may be the reason why the training stopped, because it raised an unexpected error; else empty."""
        lines = self.select("file")
        denied = [line["path"] for line in lines if line["what"] == "denied"]
        raised = [line["path"] for line in lines if line["what"] == "refused" and line["how"] != "torch.save"]
        return next(iter([*denied, *([] if self.steps else raised)]), "")

    @property
    def external_writers(self) -> list[str]:
        """Programs that it started and databases that it opened. Their writes are not observed."""
        return [line["path"] for line in self.select("file") if line["what"] == "beyond"]


def run_in_scratch(
    context: CheckContext,
    request: Mapping[str, Any],
    seconds: float,
    *,
    device: str | None = None,
    notify: Callable[[int], None] | None = None,
    enough: Callable[[Path], bool] | None = None,
) -> DryRunResult:
    """Run the training as `request` specifies (see `holdfast_probe.dry_run`), for at most `seconds`, or until `enough(folder)` is true
    for the folder with its output.

    `device` replaces the training's own device if that is a known setting. No process and no file is left when this returns.
    """
    began = time.monotonic()
    try:
        command = get_command(context)
        with helpers.scratch() as (folder, mark):
            return _run(context, command, folder, mark, request, began + seconds, device, notify, enough)
    except (OSError, HoldfastError) as error:
        why = error.what if isinstance(error, HoldfastError) else str(error)
        return DryRunResult(tuple(context.command), start_error=why, seconds=time.monotonic() - began)


def _run(
    context: CheckContext,
    command: list[str],
    root: Path,
    mark: Mapping[str, str],
    request: Mapping[str, Any],
    until: float,
    device: str | None,
    notify: Callable[[int], None] | None,
    enough: Callable[[Path], bool] | None,
) -> DryRunResult:
    began, started_at = time.monotonic(), time.time()
    attempt = root / "attempt"
    attempt.mkdir()
    before = scratches.stat_files(context.cwd)
    scratch = scratches.make(context.cwd, root / "root")
    settings = get_settings(context, root, scratch)
    confined = find_writable(context, root) if context.confine_writes else None
    unconfined = "it was not requested" if confined is None else landlock.why_unavailable() or ""
    if unconfined:
        confined = None
    words = [command[0], *(scratch.redirect(word) for word in command[1:])]
    if device is not None:
        words, settings = replace_device(words, device), {**settings, "device": device}
    variables = {**build_environment(context, root, attempt, request, settings, confined), **mark}
    with (root / "output").open("wb") as output:
        process = subprocess.Popen(
            words if confined is None else build_confined_command(words, confined.folders, root),
            cwd=scratch.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        sensors = Sensors(context.machine, lambda: [process.pid], root, time.time)
        try:
            ended, peak_memory = _wait(process, attempt, root / "output", until, notify, enough, sensors)
        finally:
            code = _kill(process, attempt, started_at)
    if confined is not None:
        _raise_if_not_started(root)
        unconfined = _read_report(root / landlock.UNCONFINED)[1]
    return read_results(
        attempt,
        command=tuple(words),
        code=code if ended else None,
        unconfined=unconfined,
        last_lines=_read_last_lines(root / "output", scratch),
        seconds=time.monotonic() - began,
        peak_memory=peak_memory,
        changed=scratches.find_changed(before, scratches.stat_files(context.cwd)),
        copied=scratch.copied,
        linked=tuple(scratch.linked),
    )


def build_confined_command(words: Sequence[str], folders: Sequence[str], report_to: Path) -> list[str]:
    """Return a command that confines itself and then runs `words`."""
    request = json.dumps({"command": list(words), "folders": list(folders), "report_to": str(report_to)})
    return [sys.executable, "-I", "-S", "-c", Path(landlock.__file__).read_text(), request]


def _raise_if_not_started(root: Path) -> None:
    number, why = _read_report(root / landlock.FAILED)
    if why:
        raise OSError(number, why)
    if not (root / landlock.REACHED).exists():
        raise OSError(errno.EIO, "the training could not be confined; check with --no-confine")


def _read_report(path: Path) -> tuple[int, str]:
    """Return the error number and message that the confined program reported; an empty message if there was no error."""
    try:
        number, why = json.loads(read_bytes(path, 4096))
        return int(number), str(why)
    except FileNotFoundError:
        return 0, ""
    except (OSError, ValueError, TypeError):
        return 0, "the reason is unknown"


def read_results(attempt: Path, **known: Any) -> DryRunResult:
    """Read what the probe wrote to its folder and combine it with the `known` values."""
    return DryRunResult(
        lines=_read_json_lines(attempt.glob("dry_run*.jsonl")),
        op_check=_read_json_lines(attempt.glob("op_check*.jsonl")),
        records=_read_json_lines(attempt.glob("steps-*.jsonl")),
        events=_read_events(attempt / "rank-0.jsonl"),
        python_started=(attempt / "interpreters.jsonl").exists(),
        **known,
    )


def find_device_argument(command: Sequence[str]) -> int | None:
    """Return the index of the word with the device: `device=mps`, `--device=mps`, or the word after `--device`."""
    for n, word in enumerate(command):
        name = word.lstrip("-").partition("=")[0]
        if name != "device":
            continue
        if "=" in word:
            return n
        if word.startswith("--") and n + 1 < len(command):
            return n + 1
    return None


def replace_device(command: Sequence[str], device: str) -> list[str]:
    """Return the same command with another device, if the command names a device."""
    words, n = list(command), find_device_argument(command)
    if n is not None:
        name, equals, _ = words[n].partition("=")
        words[n] = f"{name}={device}" if equals else device
    return words


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process exited, without reaping it: until it is reaped, its pid and its session cannot be reused."""
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _kill(process: subprocess.Popen[bytes], attempt: Path, started_at: float) -> int:
    """Kill the process with everything that it started and return its exit code.

    Processes that left the session and outlived their parent are recognized by the environment variable of the probe.
    """
    descendants: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        descendants.update(psutil.Process(process.pid).children(recursive=True))

    def belongs(other: psutil.Process) -> bool:
        if other in descendants or os.getsid(other.pid) == process.pid:
            return True
        return bool(other.environ().get(protocol.ATTEMPT_DIR) == str(attempt))

    terminate_processes(belongs, started_at, GRACE_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _wait(
    process: subprocess.Popen[bytes],
    attempt: Path,
    output: Path,
    until: float,
    notify: Callable[[int], None] | None,
    enough: Callable[[Path], bool] | None,
    sensors: Sensors,
) -> tuple[bool, int]:
    """Wait for the process. Return whether it exited on its own, and its peak memory."""
    peak_memory, sample_at, before = 0, 0.0, sensors.sample().available
    while (now := time.monotonic()) < until:
        if _has_ended(process):
            return True, peak_memory
        time.sleep(POLL_S)
        if now >= sample_at:
            peak_memory, sample_at = (
                max(peak_memory, _current_memory(process.pid, sensors.sample(), before)),
                now + SAMPLE_S,
            )
        if notify is not None:
            notify(count_occurrences(b'"dry-run-step"', attempt / "dry_run.jsonl"))
        if output.stat().st_size > MAX_OUTPUT or (enough is not None and enough(attempt)):
            break
    return False, peak_memory


def _current_memory(pid: int, sample: Sample, before: int) -> int:
    """Return the memory in use. The sample counts pages that forked processes share once per process. The result is therefore limited to
    the decrease of available memory, and is at least the memory of the first process alone.
    """
    own = 0
    with contextlib.suppress(psutil.Error):
        own = int(psutil.Process(pid).memory_info().rss)
    return max(own, min(sample.rss, max(0, before - sample.available)))


def count_occurrences(word: bytes, path: Path) -> int:
    """Count how often `word` occurs in the file so far."""
    try:
        return path.read_bytes().count(word)
    except OSError:
        return 0


def _read_json_lines(paths: Any) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for path in sorted(paths):
        for line in path.read_bytes().splitlines()[:MAX_LINES]:
            with contextlib.suppress(ValueError):  # a truncated line
                decoded = json.loads(line)
                if isinstance(decoded, dict):
                    found.append(decoded)
    return tuple(found)


def _read_events(path: Path) -> tuple[AnyEvent, ...]:
    tail = Tail(path)
    found: list[AnyEvent] = []
    while not tail.at_end:
        found += tail.read()
    return tuple(found)


def _read_last_lines(path: Path, scratch: scratches.Scratch) -> tuple[str, ...]:
    """Return the last lines of the output, with paths as in the user's own folder."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_LAST_OUTPUT))
        text = file.read().decode("utf-8", "replace").replace(str(scratch.folder), str(scratch.original))
    return tuple(last_lines([line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]))
