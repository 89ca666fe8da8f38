"""The processes of an attempt: its roots and all their descendants, whatever session or group they moved to.

Finding them all anew for every sample would cost milliseconds on a busy desktop. What is remembered makes it cheap: a
process that is not ours cannot become ours later, so only numbers that were not there before are looked at; and one that
is ours stays ours when its parent dies and it is handed to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.machine import Machine, ProcessFacts

FORGET_EVERY = 64
"""Looks after which all numbers are looked at again: in so many, a stranger's number may have been given to one of ours."""


class ProcessTree:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ours: dict[int, ProcessFacts] = {}
        self._strangers: set[int] = set()
        self._looks = 0
        self._spent = 0.0
        self.ever: set[int] = set()
        """Every process number that was ours at some time."""

    def look(self, roots: Iterable[int]) -> list[ProcessFacts]:
        """Those alive now."""
        if self._looks % FORGET_EVERY == 0:
            self._strangers.clear()
        self._looks += 1
        self._follow_known()
        there, roots = set(self._machine.pids()), set(roots)
        self._strangers = (self._strangers & there) - roots
        self._adopt(there - self._ours.keys() - self._strangers, roots)
        self.ever.update(self._ours)
        return list(self._ours.values())

    @property
    def cpu(self) -> float:
        """Seconds of processor time of all, with those that ended as far as they were seen."""
        return self._spent + sum(one.cpu for one in self._ours.values())

    def _follow_known(self) -> None:
        for pid, before in list(self._ours.items()):
            now = self._machine.process(pid)
            if now is None or now.zombie or now.started != before.started:
                self._spent += before.cpu
                del self._ours[pid]
            else:
                self._ours[pid] = now

    def _adopt(self, new: set[int], roots: set[int]) -> None:
        seen = {pid: facts for pid in new if (facts := self._machine.process(pid)) and not facts.zombie}
        waiting = True
        while waiting:
            kin = [pid for pid, one in seen.items() if pid in roots or one.parent in self._ours]
            for pid in kin:
                self._ours[pid] = seen.pop(pid)
            waiting = bool(kin)
        self._strangers |= new - self._ours.keys() - roots
