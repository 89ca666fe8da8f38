"""A helper process that keeps the machine awake, and exits with Holdfast no matter how Holdfast exits."""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from typing import TYPE_CHECKING

from holdfast.machine.base import AwakeResult

if TYPE_CHECKING:
    from collections.abc import Callable

READY = b"held\n"
"""What a helper prints once it keeps the machine awake, if it can print."""


def not_kept(reason: str) -> AwakeResult:
    return AwakeResult(False, f"Holdfast does not keep the machine awake: {reason}.")


class _AwakeContext:
    def start(self) -> AwakeResult:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> AwakeResult:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class NothingSleeps(_AwakeContext):
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def start(self) -> AwakeResult:
        return AwakeResult(True, f"The machine does not need to be kept awake: {self._reason}.")

    def stop(self) -> None:
        pass


class CannotKeepAwake(NothingSleeps):
    def start(self) -> AwakeResult:
        return not_kept(self._reason)


class HelperKeepsAwake(_AwakeContext):
    """Ties a helper to its standard input: the kernel closes that pipe when Holdfast exits, even by SIGKILL."""

    def __init__(
        self,
        command: list[str],
        how: str,
        *,
        confirms_start: bool,
        launch: Callable[..., subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self._command = command
        self._how = how
        self._confirms_start = confirms_start
        self._launch = launch or subprocess.Popen
        self._helper: subprocess.Popen[bytes] | None = None

    def start(self) -> AwakeResult:
        if self._helper is not None:
            return AwakeResult(True, f"The machine is kept awake by {self._how}.")
        try:
            helper = self._launch(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C and password prompts on this terminal must not reach it
            )
        except OSError as error:
            return not_kept(f"{self._command[0]} could not be run ({error.strerror or error})")
        self._helper = helper
        problem = self._find_problem(helper)
        if problem is None:
            return AwakeResult(True, f"The machine is kept awake by {self._how}.")
        self.stop()
        return not_kept(f"{self._command[0]} reported: {problem}")

    def _find_problem(self, helper: subprocess.Popen[bytes]) -> str | None:
        if not self._confirms_start:
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.wait(0.05)
            return None if helper.poll() is None else _first_line(_read_until(helper, b"\n", 0.5))
        output = _read_until(helper, READY, 2.0)
        return None if output.endswith(READY) else _first_line(output)

    def stop(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            helper.terminate()
            helper.wait(1.0)
        except (OSError, subprocess.TimeoutExpired):
            helper.kill()
            helper.wait()


def _read_until(helper: subprocess.Popen[bytes], mark: bytes, seconds: float) -> bytes:
    assert helper.stdout is not None
    output, deadline = b"", time.monotonic() + seconds
    while not output.endswith(mark) and len(output) < 4096 and (left := deadline - time.monotonic()) > 0:
        if not select.select([helper.stdout], [], [], left)[0]:
            break
        chunk = helper.stdout.read1(256)  # type: ignore[attr-defined]
        if not chunk:
            break
        output += chunk
    return output


def _first_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[0].rstrip(".") if lines else "nothing within 2 seconds"
