"""After a finished training: are the checkpoints that it leaves whole, loadable and finite?

They are read back under the interpreter that trained, because the supervisor has no torch of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.probe.holdfast_probe import protocol, verify_checkpoint
from holdfast.process.python_command import program
from holdfast.schema.events import AttemptEnded, Epoch, ProcessExiting, Reloaded
from holdfast.supervisor.resume_point import saved_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import Event
    from holdfast.schema.plan import Plan

MAX_FILES = 3
TIMEOUT_S = 120.0
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors", ".model", ".pkl")
SOURCE = Path(verify_checkpoint.__file__)


class Reader:
    """The process that reads them. It gets ready while the training's own still does its last evaluation or winds down: importing torch
    takes as long.

    It listens to the run's events: `Reader()(event, state)`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, event: Event, state: RunState) -> None:
        """A training that has saved something and says goodbye, or has come to its last epoch's end, may be finished."""
        attempt = state.attempt if state.attempts else None
        may_be_over = isinstance(event, ProcessExiting) or (isinstance(event, Epoch) and event.epoch == event.planned)
        trains_again = isinstance(event, Epoch) and not may_be_over
        failed = isinstance(event, AttemptEnded) and (event.code != 0 or event.stopped_by is not None)
        if trains_again or failed:
            self.close()
        elif may_be_over and attempt is not None and attempt.attached is not None and attempt.saves.by_path:
            self._start(attempt.attached.executable)

    def read_back(self, state: RunState, plan: Plan, clock: Callable[[], float]) -> list[Reloaded]:
        """The newest checkpoints of the newest attempt, read back."""
        attempt = state.attempt
        saved = saved_files(state, plan)
        files = [(path, step) for path, step in saved if path.suffix in SUFFIXES and path.is_file()]
        newest = sorted(files, key=lambda file: file[1])[-MAX_FILES:]
        if not newest or attempt.attached is None:
            return []
        self._start(attempt.attached.executable)
        steps = {str(path): step for path, step in newest}
        replies = _parse_replies(self._communicate("".join(f"{json.dumps(path)}\n" for path in steps)))
        found = []
        for path, reply in replies.items():
            # What else a library printed is none of ours.
            with contextlib.suppress(msgspec.ValidationError):
                if path in steps:
                    found.append(
                        msgspec.convert(
                            {**reply, "at": clock(), "path": path, "step": steps[path], "of": len(files)}, Reloaded
                        )
                    )
        return found

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self, executable: str) -> None:
        if self._process is not None:
            return
        excluded = (protocol.ATTEMPT_DIR, protocol.HEARTBEAT, protocol.LOCK, "TORCH_FORCE_WEIGHTS_ONLY_LOAD")
        environment = {name: value for name, value in os.environ.items() if name not in excluded}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._process = subprocess.Popen(
                program([executable], SOURCE.read_text()),
                env={**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for Holdfast
            )

    def _communicate(self, request: str) -> bytes:
        """What it says of the paths that it is asked about, as far as it got."""
        if self._process is None:
            return b""
        try:
            return self._process.communicate(request.encode(), timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired as error:
            return error.stdout or b""
        except OSError:
            return b""
        finally:
            self.close()


def _parse_replies(output: bytes) -> dict[str, dict[str, Any]]:
    """By path; one is missing where nothing is claimed of it."""
    answers = {}
    for line in output.splitlines():
        try:
            replies = json.loads(line)
            answers[replies.pop("path")] = replies
        except (ValueError, KeyError, AttributeError, RecursionError):
            continue
    return answers
