"""Validation of best.pt on the CPU, if the device that trained it is suspect or the plan asks for it.

The result is recorded as the final validation. The rules and proofs that compare a file with the metrics of its training then
compare it with results of a reliable device.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks import by_name
from holdfast.process.python_command import program
from holdfast.remedies.policy import suspects_device
from holdfast.schema import events
from holdfast.schema.devices import hide_accelerators
from holdfast.storage.safe_files import open_regular
from holdfast.supervisor.child_env import PROBE_FOLDER

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.plan import Plan

TIMEOUT_S = 3600.0
MAX_READ = 1 << 20
"""Bytes to read from the end of the output: the reply comes last."""
SOURCE = "best.pt on the CPU"
REPLY_PREFIX = "holdfast: "
OUTPUT_FILE = "output"
PROGRAM = (
    "import os, runpy, sys; sys.path.insert(0, sys.argv[2]); sys.path.append(os.getcwd()); "
    "runpy.run_module(sys.argv[3], run_name='__main__')"
)
"""The working folder is last on the path: a checkpoint may need classes from its modules, but they must not shadow others."""


def make_validation(state: RunState, plan: Plan) -> Validation | None:
    """Return the validation to run, or None if none is needed."""
    attempt = state.attempt
    setting = plan.validation.on_cpu
    if attempt.attached is None or setting == "never" or plan.observe_only:
        return None
    if setting == "auto" and not suspects_device(state):
        return None
    request = by_name(attempt.framework).validation_request(state)
    if request is None:
        return None
    why = "the plan asks for it" if setting == "always" else "the results of the device are suspect"
    return Validation(attempt.attached.executable, *request, plan.cwd, why)


class Validation:
    """A process that validates best.pt. As a context manager, it terminates the process on exit."""

    def __init__(self, executable: str, module: str, request: dict[str, Any], cwd: str, why: str) -> None:
        self.why = why
        self._executable = executable
        self._module = module
        self._request = request
        self._cwd = cwd
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-validation-")
        self._process: subprocess.Popen[bytes] | None = None
        self._error = ""

    def __enter__(self) -> Self:
        folder = self._folder.name
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        request = json.dumps({**self._request, "folder": folder})
        try:
            self._process = subprocess.Popen(
                program([self._executable], PROGRAM, request, str(PROBE_FOLDER), self._module),
                cwd=self._cwd,
                env={**environment, **hide_accelerators()},
                stdin=subprocess.DEVNULL,
                stdout=(Path(folder) / OUTPUT_FILE).open("wb"),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._error = str(error)
        self._deadline = time.monotonic() + TIMEOUT_S
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._kill()
            self._process.wait()
        self._reply = self._read_reply()
        self._folder.cleanup()

    def is_finished(self) -> bool:
        if self._process is not None and time.monotonic() > self._deadline:
            self._kill()
        return self._process is None or self._process.poll() is not None

    def _kill(self) -> None:
        """Kill the process group, which includes the data loading workers. The group id is valid until the process is waited for."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def result_event(self, at: float, step: int) -> events.AnyEvent:
        """Return the result as an event. Call it after the context has been left."""
        reply = self._reply
        if "values" not in reply:
            why = str(reply.get("why") or self._error or "the validation process did not reply")
            return events.SupervisorNote(at=at, what="best.pt was not validated on the CPU", detail=why)
        return events.Metrics(at=at, step=step, epoch=None, values=reply["values"], source=SOURCE)

    def _read_reply(self) -> dict[str, Any]:
        try:
            with open_regular(Path(self._folder.name) / OUTPUT_FILE) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
                output = file.read(MAX_READ).decode(errors="replace")
        except OSError:
            return {}
        line = next((line for line in reversed(output.splitlines()) if line.startswith(REPLY_PREFIX)), "")
        try:
            reply = json.loads(line.removeprefix(REPLY_PREFIX))
        except (ValueError, RecursionError):
            return {}
        return reply if isinstance(reply, dict) else {}
