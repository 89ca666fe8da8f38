"""The processes of an attempt: its roots and all their descendants, in any session or process group.

A full search for every sample would cost milliseconds on a busy desktop. Two facts make it cheap: a process that is not
a member cannot become one later, so only new pids are inspected; and a member stays a member when its parent exits and
it gets another parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.machine import Machine, ProcessFacts

RESCAN_EVERY = 64
"""Updates after which all pids are inspected again: by then, the pid of an unrelated process may belong to a member."""


class ProcessTree:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._members: dict[int, ProcessFacts] = {}
        self._unrelated: set[int] = set()
        self._scans = 0
        self._cpu_of_exited = 0.0
        self.all_pids: set[int] = set()
        """Every pid that was a member at some time."""

    def update(self, roots: Iterable[int]) -> list[ProcessFacts]:
        """Return the members that are alive now."""
        if self._scans % RESCAN_EVERY == 0:
            self._unrelated.clear()
        self._scans += 1
        self._refresh_members()
        pids, roots = set(self._machine.pids()), set(roots)
        self._unrelated = (self._unrelated & pids) - roots
        self._add_new(pids - self._members.keys() - self._unrelated, roots)
        self.all_pids.update(self._members)
        return list(self._members.values())

    @property
    def cpu(self) -> float:
        """CPU seconds of all members, including exited ones as of their last update."""
        return self._cpu_of_exited + sum(member.cpu for member in self._members.values())

    def _refresh_members(self) -> None:
        for pid, before in list(self._members.items()):
            now = self._machine.process(pid)
            if now is None or now.zombie or now.started != before.started:
                self._cpu_of_exited += before.cpu
                del self._members[pid]
            else:
                self._members[pid] = now

    def _add_new(self, new: set[int], roots: set[int]) -> None:
        candidates = {pid: facts for pid in new if (facts := self._machine.process(pid)) and not facts.zombie}
        found_any = True
        while found_any:
            related = [pid for pid, facts in candidates.items() if pid in roots or facts.parent in self._members]
            for pid in related:
                self._members[pid] = candidates.pop(pid)
            found_any = bool(related)
        self._unrelated |= new - self._members.keys() - roots
