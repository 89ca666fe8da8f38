"""A helper process that keeps the machine awake, and ends with us however we end."""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_KEPT = "The machine is not kept awake"
"""How the sentence of every `start` begins that did not succeed."""
READY = b"held\n"
"""What a helper prints once it keeps the machine awake, where it can print."""


class _AwakeContext:
    def start(self) -> str:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> str:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class NothingSleeps(_AwakeContext):
    def __init__(self, why: str) -> None:
        self._why = why

    def start(self) -> str:
        return f"Nothing has to be kept awake: {self._why}."

    def stop(self) -> None:
        pass


class CannotKeepAwake(NothingSleeps):
    def start(self) -> str:
        return f"{NOT_KEPT}: {self._why}."


class HelperKeepsAwake(_AwakeContext):
    """Holds a helper by its standard input: the kernel closes that pipe when we die, by SIGKILL too."""

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
        self._says_held = confirms_start
        self._launch = launch or subprocess.Popen
        self._helper: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        if self._helper is not None:
            return f"The machine is kept awake by {self._how}."
        try:
            helper = self._launch(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # neither Ctrl-C nor a password prompt on our terminal is its business
            )
        except OSError as error:
            return f"{NOT_KEPT}: {self._command[0]} could not be run ({error.strerror or error})."
        self._helper = helper
        problem = self._find_problem(helper)
        if problem is None:
            return f"The machine is kept awake by {self._how}."
        self.stop()
        return f"{NOT_KEPT}: {self._command[0]} said: {problem}."

    def _find_problem(self, helper: subprocess.Popen[bytes]) -> str | None:
        if not self._says_held:
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.wait(0.05)
            return None if helper.poll() is None else _first_line(_read_until(helper, b"\n", 0.5))
        said = _read_until(helper, READY, 2.0)
        return None if said.endswith(READY) else _first_line(said)

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
    said, end = b"", time.monotonic() + seconds
    while not said.endswith(mark) and len(said) < 4096 and (left := end - time.monotonic()) > 0:
        if not select.select([helper.stdout], [], [], left)[0]:
            break
        more = helper.stdout.read1(256)  # type: ignore[attr-defined]
        if not more:
            break
        said += more
    return said


def _first_line(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[0].rstrip(".") if lines else "nothing within two seconds"
