"""The Python that a training would run under: what it is, told by itself, and how it is asked for more."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.diagnosis.versions import Versions, parse_version
from holdfast.probe.holdfast_probe.env_scripts import facts
from holdfast.process.helper_processes import BeingEnded, helpers
from holdfast.process.python_command import program as python_program
from holdfast.process.python_command import python_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FACTS = Path(facts.__file__)
MAX_WORDS = 4000
"""Characters of what a program printed on stderr that are kept, from its end."""
_HIDDEN = "HOLDFAST_"


@dataclass(frozen=True)
class Reply:
    """What came of asking: the JSON lines, and how the program ended."""

    lines: tuple[dict[str, Any], ...] = ()
    code: int | None = 0
    """None where it had to be ended, because the time was over."""
    words: str = ""
    """The end of its stderr."""

    @property
    def how_it_ended(self) -> str | None:
        """None where it ended well."""
        if self.code is None:
            return "it had not ended in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"it was ended by {signal.Signals(-self.code).name}"
            return f"it was ended by signal {-self.code}"
        return f"it ended with exit code {self.code}" if self.code else None

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.words.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    cuda_build: str | None = None
    """The CUDA (or ROCm) that it was built for."""
    mps_built: bool = False
    devices: list[str] = msgspec.field(default_factory=lambda: ["cpu"])
    """Those that it can see, the most capable first."""
    names: dict[str, str] = {}
    cuda_error: str | None = None
    numpy_error: str | None = None
    threads: int = 1


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """Facts. What it was not asked, or died before it could say, is None."""

    executable: str
    python: str = ""
    platform: str = ""
    macos: str | None = None
    machine: str = ""
    chip: str | None = None
    packages: dict[str, str] = {}
    """Of those that matter here, by the name they are installed under."""
    torch: Torch | None = None
    no_torch: str = ""
    """Why there is none, as a sentence's end: "torch is not installed in ..."."""
    torchvision: str | None = None
    """"loads", or what its operators said; None where it is not there or was not tried."""
    openmp: dict[str, list[str]] = {}
    """The OpenMP runtimes in the process after each of torch and the libraries beside it was loaded."""
    died: str = ""
    """What it did not survive, and how: "faiss: it was ended by SIGABRT"."""
    last_words: str = ""

    @property
    def on_mac(self) -> bool:
        return self.macos is not None

    @property
    def versions(self) -> Versions:
        have = self.packages
        torch = self.torch.version if self.torch is not None else have.get("torch")
        return Versions(
            torch=parse_version(torch),
            macos=parse_version(self.macos),
            ultralytics=parse_version(have.get("ultralytics")),
            torchvision=parse_version(have.get("torchvision")),
            numpy=parse_version(have.get("numpy")),
        )

    @property
    def faiss(self) -> str | None:
        return next((f"{name} {self.packages[name]}" for name in self.packages if name.startswith("faiss")), None)


def facts_in(said: Reply) -> Interpreter | None:
    """What the program of facts said; None where it did not even say what Python it is."""
    known: dict[str, Any] = {}
    trying, failed, done, openmp = "", "", False, {}
    for line in said.lines:
        fact = line.get("fact")
        values = {name: value for name, value in line.items() if name != "fact"}
        if fact == "python":
            known.update(values)
        elif fact == "torch":
            known["torch"] = values
        elif fact == "torchvision":
            known["torchvision"] = values["error"] or "loads"
        elif fact == "openmp":
            openmp[values["after"]] = values["files"]
        elif fact == "trying":
            trying = values["what"]
        elif fact == "failed":
            failed = failed or (values["error"] if values["what"] == "torch" else "")
        done = done or fact == "done"
    if "executable" not in known:
        return None
    died = "" if done or failed or not said.how_it_ended else f"{trying or 'Python'}: {said.how_it_ended}"
    if "torch" not in known:
        known["no_torch"] = _why_no_torch(known, failed, said)
    known.update(openmp=openmp, died=died, last_words=said.last_line if died else "")
    return msgspec.convert(known, Interpreter, strict=False)


def _why_no_torch(known: dict[str, Any], failed: str, said: Reply) -> str:
    where = known["executable"]
    if "torch" not in known.get("packages", {}) and (not failed or failed.startswith("ModuleNotFoundError")):
        return f"torch is not installed in {where}"
    if failed:
        return f"torch cannot be imported in {where}: {failed}"
    return f"torch cannot be imported in {where}: {said.how_it_ended or 'it said nothing'}"


class PythonClient:
    """Runs programs under one interpreter. What it has started ends with it."""

    def __init__(self, python: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._python = list(python)
        self._cwd = cwd
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith(_HIDDEN)},
            "PYTHONSAFEPATH": "1",  # the folder's own files are not the packages that they may be named like
            "PYTHONUNBUFFERED": "1",
            "SYSTEM_VERSION_COMPAT": "0",  # or macOS calls itself 10.16 to a Python that was built long ago
        }
        self._environment.pop("PYTHONPATH", None)
        self._environment.update(python_path(environment))
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __call__(
        self,
        program: Path,
        arguments: list[str],
        given: str,
        seconds: float,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> Reply:
        try:
            with helpers.session() as mark:
                return self._asked(program, arguments, given, seconds, on_line, mark)
        except BeingEnded:
            return Reply(code=None)

    def _asked(
        self,
        program: Path,
        arguments: list[str],
        given: str,
        seconds: float,
        on_line: Callable[[dict[str, Any]], None] | None,
        mark: dict[str, str],
    ) -> Reply:
        try:
            process = subprocess.Popen(
                python_program(self._python, program.read_text(), *arguments),
                cwd=self._cwd,
                env={**self._environment, **mark},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: we end it, and all that it started
            )
        except (OSError, ValueError) as error:
            return Reply(code=127, words=f"{self._python[0]} could not be started: {error}")
        self._alive.add(process)
        if self._closed:
            _end(process)
        with process:
            try:
                return _followed(process, given, seconds, on_line)
            finally:
                _end(process)
                self._alive.discard(process)

    def close(self) -> None:
        self._closed = True
        for process in list(self._alive):
            _end(process)


def _followed(
    process: subprocess.Popen[bytes], given: str, seconds: float, on_line: Callable[[dict[str, Any]], None] | None
) -> Reply:
    lines: list[dict[str, Any]] = []
    words = bytearray()
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _end(process)

    def feed() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(given.encode("utf-8", "surrogateescape"))
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()

    def listen() -> None:
        assert process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while piece := process.stderr.read1(8192):  # type: ignore[attr-defined]
                words.extend(piece)
                del words[:-MAX_WORDS]

    timer = threading.Timer(max(0.1, seconds), give_up)
    helpers = [threading.Thread(target=feed, daemon=True), threading.Thread(target=listen, daemon=True)]
    for helper in (timer, *helpers):
        helper.daemon = True
        helper.start()
    assert process.stdout is not None
    try:
        with contextlib.suppress(OSError, ValueError):
            for raw in process.stdout:
                line = _json(raw)
                if line is not None:
                    lines.append(line)
                    if on_line is not None:
                        on_line(line)
        code = process.wait()
    finally:
        timer.cancel()
    for helper in helpers:
        helper.join(1.0)
    return Reply(tuple(lines), None if late.is_set() else code, bytes(words).decode("utf-8", "replace"))


def _json(raw: bytes) -> dict[str, Any] | None:
    """Libraries print what they like: what is no object of JSON is none of ours."""
    if not raw.startswith(b"{"):
        return None
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its whole session. A group whose leader was not yet waited for cannot be another's by now."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
