"""The Python interpreter that the script would run under: facts that it reports about itself, and a client that runs programs under it."""

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
from holdfast.process.helper_processes import HelpersStopping, helpers
from holdfast.process.python_command import program as python_program
from holdfast.process.python_command import python_path
from holdfast.schema.exits import describe_exit, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FACTS = Path(facts.__file__)
PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
    "faiss",
    "scikit-learn",
    "xgboost",
    "lightgbm",
    "opencv-python",
    "opencv-python-headless",
    "pillow",
    "lightning",
    "pytorch-lightning",
    "transformers",
)
"""Distributions whose versions matter, in addition to those of a framework."""
MAX_STDERR = 4000
"""Characters at the end of a program's stderr that are kept."""
_HIDDEN_PREFIX = "HOLDFAST_"


@dataclass(frozen=True)
class Reply:
    """The result of a program: its JSON lines and how it exited."""

    lines: tuple[dict[str, Any], ...] = ()
    code: int | None = 0
    """None if the program was killed because its time was over."""
    stderr: str = ""
    """The end of the program's stderr."""

    @property
    def failure(self) -> str | None:
        """How the program failed; None if it succeeded."""
        if self.code is None:
            return "it did not finish in time"
        signal = signal_name(-self.code) if self.code < 0 else None
        return f"it {describe_exit(self.code, signal)}" if self.code else None

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    cuda_build: str | None = None
    """The CUDA (or ROCm) version that torch was built for."""
    mps_built: bool = False
    devices: list[str] = msgspec.field(default_factory=lambda: ["cpu"])
    """The devices that torch sees, the most capable first."""
    names: dict[str, str] = {}
    cuda_error: str | None = None
    numpy_error: str | None = None
    threads: int = 1


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an interpreter. A fact that was not queried, or that a crash prevented, is None."""

    executable: str
    python: str = ""
    platform: str = ""
    macos: str | None = None
    machine: str = ""
    chip: str | None = None
    packages: dict[str, str] = {}
    """Versions of the relevant packages, by the name of their distribution."""
    torch: Torch | None = None
    no_torch: str = ""
    """Why torch is missing, as the end of a sentence: "torch is not installed in ..."."""
    torchvision: str | None = None
    """"loads", or the error of its operators; None if it is not installed or was not tried."""
    openmp: dict[str, list[str]] = {}
    """The OpenMP runtimes in the process after importing torch and after importing each other library."""
    died: str = ""
    """What crashed it, and how: "faiss: it was killed by SIGABRT"."""
    last_lines: str = ""

    @property
    def on_mac(self) -> bool:
        return self.macos is not None

    @property
    def versions(self) -> Versions:
        torch = self.torch.version if self.torch is not None else self.packages.get("torch")
        packages = {name: version for name, text in self.packages.items() if (version := parse_version(text))}
        return Versions(torch=parse_version(torch), macos=parse_version(self.macos), packages=packages)

    @property
    def faiss(self) -> str | None:
        return next((f"{name} {self.packages[name]}" for name in self.packages if name.startswith("faiss")), None)


def parse_facts(reply: Reply) -> Interpreter | None:
    """Parse the reply of the facts program; None if it did not even report which Python it is."""
    known: dict[str, Any] = {}
    trying, failed, done, openmp = "", "", False, {}
    for line in reply.lines:
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
    died = "" if done or failed or not reply.failure else f"{trying or 'Python'}: {reply.failure}"
    if "torch" not in known:
        known["no_torch"] = _why_no_torch(known, failed, reply)
    known.update(openmp=openmp, died=died, last_lines=reply.last_line if died else "")
    return msgspec.convert(known, Interpreter, strict=False)


def _why_no_torch(known: dict[str, Any], failed: str, reply: Reply) -> str:
    where = known["executable"]
    if "torch" not in known.get("packages", {}) and (not failed or failed.startswith("ModuleNotFoundError")):
        return f"torch is not installed in {where}"
    if failed:
        return f"torch cannot be imported in {where}: {failed}"
    return f"torch cannot be imported in {where}: {reply.failure or 'it printed nothing'}"


class PythonClient:
    """Runs programs under one interpreter. `close` kills the programs that are still running."""

    def __init__(self, python: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._python = list(python)
        self._cwd = cwd
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith(_HIDDEN_PREFIX)},
            "PYTHONSAFEPATH": "1",  # a file in the folder must not shadow a package of the same name
            "PYTHONUNBUFFERED": "1",
            "SYSTEM_VERSION_COMPAT": "0",  # otherwise macOS reports version 10.16 to an old Python build
        }
        self._environment.pop("PYTHONPATH", None)
        self._environment.update(python_path(environment))
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __call__(
        self,
        program: Path,
        arguments: list[str],
        stdin: str,
        seconds: float,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> Reply:
        try:
            with helpers.session() as mark:
                return self._run(program, arguments, stdin, seconds, on_line, mark)
        except HelpersStopping:
            return Reply(code=None)

    def _run(
        self,
        program: Path,
        arguments: list[str],
        stdin: str,
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
                start_new_session=True,  # Holdfast handles Ctrl-C and kills the program with all its children
            )
        except (OSError, ValueError) as error:
            return Reply(code=127, stderr=f"{self._python[0]} could not be started: {error}")
        self._alive.add(process)
        if self._closed:
            _kill(process)
        with process:
            try:
                return _communicate(process, stdin, seconds, on_line)
            finally:
                _kill(process)
                self._alive.discard(process)

    def close(self) -> None:
        self._closed = True
        for process in list(self._alive):
            _kill(process)


def _communicate(
    process: subprocess.Popen[bytes], stdin: str, seconds: float, on_line: Callable[[dict[str, Any]], None] | None
) -> Reply:
    lines: list[dict[str, Any]] = []
    stderr = bytearray()
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _kill(process)

    def feed() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(stdin.encode("utf-8", "surrogateescape"))
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()

    def read_stderr() -> None:
        assert process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while piece := process.stderr.read1(8192):  # type: ignore[attr-defined]
                stderr.extend(piece)
                del stderr[:-MAX_STDERR]

    timer = threading.Timer(max(0.1, seconds), give_up)
    helpers = [threading.Thread(target=feed, daemon=True), threading.Thread(target=read_stderr, daemon=True)]
    for helper in (timer, *helpers):
        helper.daemon = True
        helper.start()
    assert process.stdout is not None
    try:
        with contextlib.suppress(OSError, ValueError):
            for raw in process.stdout:
                line = _parse_line(raw)
                if line is not None:
                    lines.append(line)
                    if on_line is not None:
                        on_line(line)
        code = process.wait()
    finally:
        timer.cancel()
    for helper in helpers:
        helper.join(1.0)
    return Reply(tuple(lines), None if late.is_set() else code, bytes(stderr).decode("utf-8", "replace"))


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None for other lines, because libraries also print to stdout."""
    if not raw.startswith(b"{"):
        return None
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its whole process group. Until the leader is reaped, no other group can reuse its id."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
