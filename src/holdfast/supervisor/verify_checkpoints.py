"""Verification after a finished training: are its checkpoints complete, loadable and finite?

They are loaded with the interpreter that trained, because the supervisor has no torch.
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
from holdfast.schema.devices import hide_accelerators
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
    """The process that loads checkpoints. It starts during the training's last evaluation or shutdown, because importing torch
    takes about as long.

    It listens to the run's events: `Reader()(event, state)`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, event: Event, state: RunState) -> None:
        """Start the process when a training that has saved a checkpoint exits or completes its last epoch: it may be finished."""
        attempt = state.attempt if state.attempts else None
        may_be_over = isinstance(event, ProcessExiting) or (isinstance(event, Epoch) and event.epoch == event.planned)
        trains_again = isinstance(event, Epoch) and not may_be_over
        failed = isinstance(event, AttemptEnded) and (event.code != 0 or event.stopped_by is not None)
        if trains_again or failed:
            self.close()
        elif may_be_over and attempt is not None and attempt.attached is not None and attempt.saves.by_path:
            self._start(attempt.attached.executable)

    def read_back(self, state: RunState, plan: Plan, clock: Callable[[], float]) -> list[Reloaded]:
        """Load the newest checkpoints of the newest attempt and return the results."""
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
            # Anything else was printed by a library.
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
                env={**environment, **hide_accelerators(), "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must reach only Holdfast
            )

    def _communicate(self, request: str) -> bytes:
        """Send the paths and return the output, as far as the process got."""
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
    """Return the replies by path. A path without a reply is missing."""
    replies = {}
    for line in output.splitlines():
        try:
            reply = json.loads(line)
            replies[reply.pop("path")] = reply
        except (ValueError, KeyError, AttributeError, RecursionError):
            continue
    return replies
