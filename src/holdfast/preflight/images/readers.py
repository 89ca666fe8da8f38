"""Processes that look at images: each reads requests from its standard input and answers each with a line.

They run under the user's interpreter, because that has Pillow, and one process a core, because decoding is all they do. A
image that ends its reader (a decoder's bug, memory) or holds it for too long costs that image only: the reader is
started again and goes on with the next.
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
from holdfast.schema.images import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SOURCE = Path(image_scan.__file__)
IN_FLIGHT = 16
"""Requests that a reader holds: it never waits for the next one."""
IN_FLIGHT_BYTES = 12_000
"""Less than the smallest pipe takes, so that asking never blocks while an answer does."""
TOO_SLOW_S = 30.0
STARTS_WITHIN_S = 60.0
MAX_DEATHS = 20
"""Of one reader; more are no longer the fault of single images."""
QUEUED = 4096
HIDDEN = "HOLDFAST_"
"""Variables that are for a training under a supervisor."""


class Request(NamedTuple):
    number: int
    image: str
    label: str


class Task(NamedTuple):
    """What all images of a data set have in common."""

    classes: int | None
    columns: int | None
    """Of a line of labels with key points; None: boxes or polygons."""


class ReadersFailed(Exception):
    """No image can be looked at with this interpreter; the text says why."""


class _Ready(msgspec.Struct):
    """The first line of a reader."""

    pillow: str | None


class Readers:
    """Several readers at work on one list; `answers` gives what they say, as it comes."""

    def __init__(self, python: str, task: Task, requests: Sequence[Request], *, count: int) -> None:
        self._python, self._task = python, task
        self._waiting = deque(requests)
        self._answers: queue.Queue[Seen | None] = queue.Queue(maxsize=QUEUED)
        self._readers = [_Reader(self) for _ in range(max(1, min(count, len(requests))))]
        self.pillow: str | None = None
        self.failure = ""
        self.mark: dict[str, str] = {}

    def answers(self, seconds: float) -> Iterator[Seen]:
        """Ends when all was looked at, or when the time is over."""
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
                    reader.end_if_stuck(now)
                try:
                    said = self._answers.get(timeout=min(0.5, until - now))
                except queue.Empty:
                    continue
                if said is None:
                    working -= 1
                else:
                    yield said
            if self._waiting:
                raise ReadersFailed(self.failure or "the readers ended before their work was done")
        finally:
            self._stop()

    def _stop(self) -> None:
        for reader in self._readers:
            reader.stopped = True
        for reader in self._readers:
            while reader.is_alive():
                reader.kill()
                try:
                    self._answers.get(timeout=0.05)  # a reader that waits for room can go on
                except queue.Empty:
                    reader.join(timeout=0.05)

    def next_request(self) -> Request | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def give_back(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)

    def put(self, said: Seen | None) -> None:
        self._answers.put(said)

    def command(self) -> list[str]:
        return program([self._python], SOURCE.read_text())

    def task_line(self) -> bytes:
        return _line({"classes": self._task.classes, "columns": self._task.columns})


class _Reader(threading.Thread):
    """One process after the other, each until it dies or all is done."""

    def __init__(self, owner: Readers) -> None:
        super().__init__(name="image-reader", daemon=True)
        self._owner = owner
        self._held: deque[Request] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._waits_since: float | None = None
        self._greeted = False
        self._too_slow = False
        self.stopped = False

    def run(self) -> None:
        deaths = 0
        try:
            while not self.stopped and deaths <= MAX_DEATHS and not self._one_life():
                deaths += 1
            if deaths > MAX_DEATHS:
                self._owner.failure = f"the reader died {deaths} times"
        finally:
            self._owner.give_back(list(self._held))
            self._owner.put(None)

    def _one_life(self) -> bool:
        """True when there is nothing left to do."""
        with tempfile.TemporaryFile() as errors:
            try:
                self._process = process = subprocess.Popen(
                    self._owner.command(),
                    env={**_environment(), **self._owner.mark},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # a Ctrl-C is for Holdfast
                )
            except OSError as error:
                self._owner.failure = f"{self._owner.command()[0]} cannot be started: {error.strerror}"
                self.stopped = True
                return False
            done = False
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError), process:
                try:
                    done = self._talk(process, errors)
                finally:
                    process.kill()
        if not done and not self.stopped and self._held:
            self._blame(self._held.popleft(), process.returncode)
        return done

    def _talk(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> bool:
        assert process.stdin is not None
        self._too_slow = self._greeted = False
        process.stdin.write(self._owner.task_line())
        process.stdin.flush()
        ready = self._read_ready(process)
        if ready is None:
            self._owner.failure = _last_words(errors) or "the reader ended before its first word"
            self.stopped = True
            return False
        self._greeted, self._owner.pillow = True, ready.pillow
        # What a reader that died still held is asked again; the first of it was blamed and is no longer there.
        lines = {request.number: _line(request) for request in self._held}
        with contextlib.suppress(BrokenPipeError):  # it has died; what it answered before is still to be read
            for line in lines.values():
                process.stdin.write(line)
            process.stdin.flush()
        while not self.stopped:
            with contextlib.suppress(BrokenPipeError):
                self._ask_more(process, lines)
            if not self._held:
                return True
            answer = self._answer(process)
            if not answer.endswith(b"\n"):
                return False
            said = msgspec.json.decode(answer, type=Seen)
            lines.pop(self._held.popleft().number, None)
            self._owner.put(said)
        return False

    def _read_ready(self, process: subprocess.Popen[bytes]) -> _Ready | None:
        """The first line that is the reader's own: what is loaded with an interpreter may print before it."""
        while line := self._answer(process):
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line, type=_Ready)
        return None

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
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
            lines[request.number] = line = _line(request)
            self._held.append(request)
            process.stdin.write(line)
            size, new = size + len(line), True
        if new:
            process.stdin.flush()

    def _blame(self, request: Request, code: int | None) -> None:
        slow = self._too_slow
        self._owner.put(
            Seen(
                index=request.number,
                problem="too-slow" if slow else "reader-died",
                detail=f"no answer in {TOO_SLOW_S:.0f} s" if slow else f"the decoder ended with {code}",
            )
        )

    def end_if_stuck(self, now: float) -> None:
        since, allowed = self._waits_since, TOO_SLOW_S if self._greeted else STARTS_WITHIN_S
        if since is not None and now - since > allowed:
            self._too_slow = True
            self.kill()

    def kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"  # pure ASCII: names that are no UTF-8 come through as well


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read(64_000).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
