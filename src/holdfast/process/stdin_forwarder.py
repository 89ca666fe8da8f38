"""The thread that forwards what the user types to the child's terminal."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

from holdfast.process.process_events import Interrupt, Suspend
from holdfast.process.signals import start_thread
from holdfast.process.sink import CHUNK_BYTES, Flow, WakeupPipe, reopen_stream
from holdfast.process.terminal import STDIN

if TYPE_CHECKING:
    from holdfast.process.terminal import ChildTerminal, Terminal

MAX_WAIT_SECONDS = 1.0
"""How long typed bytes are kept for a child whose input buffer is full."""
JOIN_SECONDS = 1.0


class StdinForwarder:
    """Forwards what the user types to the child's terminal, and posts the keys that concern the supervisor too."""

    def __init__(self, terminal: Terminal, child_terminal: ChildTerminal, flow: Flow) -> None:
        self._terminal = terminal
        self._child_terminal = child_terminal
        self._flow = flow
        self._wakeup = WakeupPipe()
        self._is_listening = False
        self._closing = False
        self._keys, _ = reopen_stream(STDIN, os.O_RDONLY)
        self.thread = start_thread("holdfast keyboard", self._run)

    @property
    def is_listening(self) -> bool:
        return self._is_listening

    def listen(self) -> None:
        self._is_listening = True
        self._wakeup.notify()

    def pause(self) -> None:
        self._is_listening = False
        self._wakeup.notify()

    def close(self) -> None:
        self._closing = True
        self._wakeup.notify()
        self.thread.join(JOIN_SECONDS)
        if not self.thread.is_alive():
            self._wakeup.close()
            os.close(self._keys)

    def end_input(self) -> None:
        """Send end-of-file to the child after the terminal was closed, so that it does not wait for input forever."""
        with contextlib.suppress(OSError):
            os.write(self._child_terminal.parent_end, self._child_terminal.keys().end_of_file)

    def _run(self) -> None:
        while not self._closing:
            sources = [self._wakeup.fd, self._keys] if self._is_listening else [self._wakeup.fd]
            ready, _, _ = select.select(sources, [], [])
            if self._wakeup.fd in ready:
                self._wakeup.clear()
            elif not self._forward():
                self._is_listening = False

    def _forward(self) -> bool:
        """Forward the typed bytes.

        Return False if not in the foreground any more; the loop notices when that changes.
        """
        if not self._terminal.in_foreground():
            return False
        try:
            typed = os.read(self._keys, CHUNK_BYTES)
        except BlockingIOError:  # another program of the same job read it first
            return True
        except OSError:
            return False
        keys = self._child_terminal.keys()
        if keys.any_resumes:
            self._flow.resume()
        data = bytearray()
        for value in typed:
            meaning = keys.meanings.get(value)
            if meaning is None:
                data.append(value)
                continue
            self._write(bytes(data))
            data.clear()
            if meaning == "suspend":
                self._terminal.inbox.post(Suspend(whole_job=True))
                return False
            if meaning == "pause":
                self._flow.pause()
            else:
                self._flow.resume()
            if meaning == "interrupt":
                self._interrupt(bytes([value]))
        self._write(bytes(data))
        return bool(typed)

    def _interrupt(self, key: bytes) -> None:
        delivered = self._has_room()
        # Post it before sending the key, so that the loop gets it before the exit that follows.
        self._terminal.inbox.post(Interrupt(delivered=delivered))
        if delivered:
            self._write(key)

    def _write(self, data: bytes) -> None:
        """Write to the child's terminal. If the child never reads, excess input is dropped, as a terminal does."""
        with contextlib.suppress(OSError):
            while data and self._has_room():
                data = data[os.write(self._child_terminal.parent_end, data) :]

    def _has_room(self) -> bool:
        return bool(select.select([], [self._child_terminal.parent_end], [], MAX_WAIT_SECONDS)[1])
