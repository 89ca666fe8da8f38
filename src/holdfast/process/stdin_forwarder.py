"""The thread that carries what the user types to the child's terminal."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

from holdfast.process.process_events import Interrupt, Suspend
from holdfast.process.signals import start_thread
from holdfast.process.sink import CHUNK_BYTES, Bell, Flow, own_description
from holdfast.process.terminal import STDIN

if TYPE_CHECKING:
    from holdfast.process.terminal import ChildTerminal, Terminal

HELD_SECONDS = 1.0
"""How long keys are kept for a child that has no room for them."""
STUCK_SECONDS = 1.0


class StdinForwarder:
    """Carries what the user types to the child's terminal, and tells the loop what concerns the supervisor as well."""

    def __init__(self, terminal: Terminal, child_terminal: ChildTerminal, flow: Flow) -> None:
        self._terminal = terminal
        self._child_terminal = child_terminal
        self._flow = flow
        self._bell = Bell()
        self._listening = False
        self._closing = False
        self._keys, _ = own_description(STDIN, os.O_RDONLY)
        self.thread = start_thread("holdfast keyboard", self._run)

    @property
    def listening(self) -> bool:
        return self._listening

    def listen(self) -> None:
        self._listening = True
        self._bell.ring()

    def pause(self) -> None:
        self._listening = False
        self._bell.ring()

    def close(self) -> None:
        self._closing = True
        self._bell.ring()
        self.thread.join(STUCK_SECONDS)
        if not self.thread.is_alive():
            self._bell.close()
            os.close(self._keys)

    def end_input(self) -> None:
        """The keyboard is gone for good: a child that asks is told so, instead of waiting for ever."""
        with contextlib.suppress(OSError):
            os.write(self._child_terminal.our_end, self._child_terminal.keys().end_of_file)

    def _run(self) -> None:
        while not self._closing:
            sources = [self._bell.fd, self._keys] if self._listening else [self._bell.fd]
            ready, _, _ = select.select(sources, [], [])
            if self._bell.fd in ready:
                self._bell.silence()
            elif not self._carry():
                self._listening = False

    def _carry(self) -> bool:
        """False when the keyboard is not ours any more; the loop will see when it is again."""
        if not self._terminal.in_foreground():
            return False
        try:
            typed = os.read(self._keys, CHUNK_BYTES)
        except BlockingIOError:  # another program of our job was faster
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
        # Told before it is done, so that the loop hears of it before it hears of the exit that follows.
        self._terminal.inbox.post(Interrupt(delivered=delivered))
        if delivered:
            self._write(key)

    def _write(self, data: bytes) -> None:
        """What a child that never reads has no room for is dropped, as a terminal does."""
        with contextlib.suppress(OSError):
            while data and self._has_room():
                data = data[os.write(self._child_terminal.our_end, data) :]

    def _has_room(self) -> bool:
        return bool(select.select([], [self._child_terminal.our_end], [], HELD_SECONDS)[1])
