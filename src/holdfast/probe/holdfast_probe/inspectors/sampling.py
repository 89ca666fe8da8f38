"""One door before all looks.

Even a look that only asks and is refused costs: after a step's work the caches are cold, and every call into Python takes
microseconds. So it is decided once, at the end of a step, whether the next one is watched at all: the first ones, those on
which something can be paid for, those that are due, and now and then one in any case.
"""

from ..fast_path import EVERY
from . import Inspector
from .checksum import is_due

FIRST_STEPS = 32


class SampledInspectors(Inspector):
    name = "inspectors"

    def __init__(self, probe, inspectors, turns):
        super().__init__(probe)
        self.inspectors = inspectors
        self._turns = turns
        self._watched = 0
        self._may_be_eager = [inspector for inspector in inspectors if "eager" in vars(inspector)]
        self._keepers = [inspector for inspector in inspectors if type(inspector).step_over is not Inspector.step_over]

    def backward_begins(self, loss, first):
        if self.probe.watching:
            self._call("backward_begins", loss, first)

    def step_begins(self, optimizer, clock):
        if self.probe.watching:
            self._call("step_begins", optimizer, clock)

    def step_ended(self, optimizer, clock):
        probe = self.probe
        if probe.watching:
            self._call("step_ended", optimizer, clock)
        if clock:
            self._watched += probe.watching
            probe.watching = self._watches(probe.step + 1)

    def step_over(self, optimizer_id):
        for inspector in self._keepers:
            inspector.step_over(optimizer_id)

    def forked(self):
        return [inspector.forked() for inspector in self.inspectors]

    def ends(self):
        self._call("ends")

    def _watches(self, step):
        if self._watched < FIRST_STEPS or step % EVERY == 0:
            return True
        if self.probe.budget.credit >= self._turns.least() or (self.probe.world_size > 1 and is_due(step)):
            return True
        return any(inspector.eager for inspector in self._may_be_eager)

    def _call(self, moment, *args):
        for inspector in tuple(self.inspectors):
            try:
                getattr(inspector, moment)(*args)
            except Exception as error:
                self.inspectors.remove(inspector)
                self.probe.failed("the look %r, which is off from here on" % inspector.name, error)
