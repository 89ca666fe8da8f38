"""Processes that read images: each reads requests from stdin and answers each with one line.

They run under the user's interpreter, because it has Pillow, with one process per core, because they only decode. An
image that crashes its reader (a bug in the decoder, memory) or takes too long affects only that image: the reader is
restarted and continues with the next image.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.probe.holdfast_probe import image_scan
from holdfast.process.helper_processes import helpers
from holdfast.process.python_command import program
from holdfast.schema.devices import hide_accelerators
from holdfast.schema.images import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SOURCE = Path(image_scan.__file__)
IN_FLIGHT = 16
"""Requests that are sent to a reader in advance, so that it never waits for the next one."""
IN_FLIGHT_BYTES = 12_000
"""Less than the capacity of the smallest pipe, so that sending requests never blocks while the reader blocks on an answer."""
TOO_SLOW_S = 30.0
STARTS_WITHIN_S = 60.0
MAX_CRASHES = 20
"""Crashes of one reader; more cannot be caused by single images."""
QUEUED = 4096
HIDDEN_PREFIX = "HOLDFAST_"
"""Environment variables for a supervised training."""


class Request(NamedTuple):
    number: int
    image: str
    label: str


class Task(NamedTuple):
    """The properties that all images of a dataset share."""

    classes: int | None
    columns: int | None
    """The number of columns of a label line with keypoints; None: boxes or polygons."""


class ReadersFailed(Exception):
    """This interpreter cannot read images; the text is the reason."""


class _Ready(msgspec.Struct):
    """The first line of a reader."""

    pillow: str | None


class Readers:
    """Several readers that work on one list of requests."""

    def __init__(self, python: str, task: Task, requests: Sequence[Request], *, count: int) -> None:
        self._python, self._task = python, task
        self._waiting = deque(requests)
        self._answers: queue.Queue[Seen | None] = queue.Queue(maxsize=QUEUED)
        self._readers = [_Reader(self) for _ in range(max(1, min(count, len(requests))))]
        self.pillow: str | None = None
        self.failure = ""
        self.mark: dict[str, str] = {}

    def answers(self, seconds: float) -> Iterator[Seen]:
        """Yield the answers as they arrive, until all images are read or the time is over."""
        with helpers.session() as self.mark:
            yield from self._answers_until(time.monotonic() + seconds)

    def _answers_until(self, until: float) -> Iterator[Seen]:
        for reader in self._readers:
            reader.start()
        working = len(self._readers)
        try:
            while working:
                now = time.monotonic()
                if now >= until:
                    return
                for reader in self._readers:
                    reader.kill_if_stuck(now)
                try:
                    answer = self._answers.get(timeout=min(0.5, until - now))
                except queue.Empty:
                    continue
                if answer is None:
                    working -= 1
                else:
                    yield answer
            if self._waiting:
                raise ReadersFailed(self.failure or "the readers exited before all images were read")
        finally:
            self._stop()

    def _stop(self) -> None:
        for reader in self._readers:
            reader.is_stopped = True
        for reader in self._readers:
            while reader.is_alive():
                reader.kill()
                try:
                    self._answers.get(timeout=0.05)  # so that a reader that waits for space can continue
                except queue.Empty:
                    reader.join(timeout=0.05)

    def next_request(self) -> Request | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def give_back(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)

    def put(self, answer: Seen | None) -> None:
        self._answers.put(answer)

    def command(self) -> list[str]:
        return program([self._python], SOURCE.read_text())

    def task_line(self) -> bytes:
        return _encode_line({"classes": self._task.classes, "columns": self._task.columns})


class _Reader(threading.Thread):
    """Runs one process after the other, each until it crashes or all requests are done."""

    def __init__(self, owner: Readers) -> None:
        super().__init__(name="image-reader", daemon=True)
        self._owner = owner
        self._pending: deque[Request] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._waits_since: float | None = None
        self._is_ready = False
        self._is_too_slow = False
        self.is_stopped = False

    def run(self) -> None:
        crashes = 0
        try:
            while not self.is_stopped and crashes <= MAX_CRASHES and not self._run_process():
                crashes += 1
            if crashes > MAX_CRASHES:
                self._owner.failure = f"the reader crashed {crashes} times"
        finally:
            self._owner.give_back(list(self._pending))
            self._owner.put(None)

    def _run_process(self) -> bool:
        """Run one process. Return True if there is nothing left to do."""
        with tempfile.TemporaryFile() as errors:
            try:
                self._process = process = subprocess.Popen(
                    self._owner.command(),
                    env={**_environment(), **self._owner.mark},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # Holdfast handles Ctrl-C
                )
            except OSError as error:
                self._owner.failure = f"{self._owner.command()[0]} cannot be started: {error.strerror}"
                self.is_stopped = True
                return False
            done = False
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError), process:
                try:
                    done = self._exchange(process, errors)
                finally:
                    process.kill()
        if not done and not self.is_stopped and self._pending:
            self._report_failure(self._pending.popleft(), process.returncode)
        return done

    def _exchange(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> bool:
        assert process.stdin is not None
        self._is_too_slow = self._is_ready = False
        with contextlib.suppress(BrokenPipeError):  # it exited at once: its last line of output says why
            process.stdin.write(self._owner.task_line())
            process.stdin.flush()
        ready = self._read_ready(process)
        if ready is None:
            self._owner.failure = _read_last_line(errors) or "the reader exited before its first answer"
            self.is_stopped = True
            return False
        self._is_ready, self._owner.pillow = True, ready.pillow
        # Send the pending requests of a crashed reader again. The first one was reported as the cause and is already removed.
        lines = {request.number: _encode_line(request) for request in self._pending}
        with contextlib.suppress(BrokenPipeError):  # the reader crashed; its earlier answers must still be read
            for line in lines.values():
                process.stdin.write(line)
            process.stdin.flush()
        while not self.is_stopped:
            with contextlib.suppress(BrokenPipeError):
                self._ask_more(process, lines)
            if not self._pending:
                return True
            line = self._read_answer(process)
            if not line.endswith(b"\n"):
                return False
            answer = msgspec.json.decode(line, type=Seen)
            lines.pop(self._pending.popleft().number, None)
            self._owner.put(answer)
        return False

    def _read_ready(self, process: subprocess.Popen[bytes]) -> _Ready | None:
        """Return the reader's first line. Code that the interpreter loads at startup may print other lines before it."""
        while line := self._read_answer(process):
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line, type=_Ready)
        return None

    def _read_answer(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        self._waits_since = time.monotonic()
        try:
            return process.stdout.readline()
        finally:
            self._waits_since = None

    def _ask_more(self, process: subprocess.Popen[bytes], lines: dict[int, bytes]) -> None:
        assert process.stdin is not None
        size = sum(map(len, lines.values()))
        new = False
        while len(lines) < IN_FLIGHT and (not lines or size < IN_FLIGHT_BYTES):
            request = self._owner.next_request()
            if request is None:
                break
            lines[request.number] = line = _encode_line(request)
            self._pending.append(request)
            process.stdin.write(line)
            size, new = size + len(line), True
        if new:
            process.stdin.flush()

    def _report_failure(self, request: Request, code: int | None) -> None:
        slow = self._is_too_slow
        self._owner.put(
            Seen(
                index=request.number,
                problem="too-slow" if slow else "reader-died",
                detail=f"no answer in {TOO_SLOW_S:.0f} s" if slow else f"the decoder exited with code {code}",
            )
        )

    def kill_if_stuck(self, now: float) -> None:
        since, allowed = self._waits_since, TOO_SLOW_S if self._is_ready else STARTS_WITHIN_S
        if since is not None and now - since > allowed:
            self._is_too_slow = True
            self.kill()

    def kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()


def _encode_line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"  # pure ASCII, so that names that are not valid UTF-8 are preserved


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN_PREFIX)}
    return {**kept, **hide_accelerators(), "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


def _read_last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read(64_000).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
