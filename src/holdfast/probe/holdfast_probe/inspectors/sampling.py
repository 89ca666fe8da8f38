"""The decision which steps the inspectors see at all.

Even an inspector that only asks the budget and is refused costs time: after a step's work the caches are cold, and every
Python call takes microseconds. So one decision at the end of a step covers the whole next step. The watched steps are the
first ones, those for which the budget can pay, those on which a checksum is due, and every `EVERY`-th step.
"""

from ..fast_path import EVERY
from . import Inspector
from .checksum import is_due

FIRST_STEPS = 32


class SampledInspectors(Inspector):
    name = "inspectors"

    def __init__(self, probe, inspectors, fair_share):
        super().__init__(probe)
        self.inspectors = inspectors
        self._fair_share = fair_share
        self._watched_count = 0
        self._may_be_eager = [inspector for inspector in inspectors if "eager" in vars(inspector)]
        self._with_step_state = [
            inspector for inspector in inspectors if type(inspector).step_over is not Inspector.step_over
        ]

    def backward_begins(self, loss, first):
        if self.probe.watching:
            self._call("backward_begins", loss, first)

    def step_begins(self, optimizer, is_primary):
        if self.probe.watching:
            self._call("step_begins", optimizer, is_primary)

    def step_ended(self, optimizer, is_primary):
        probe = self.probe
        if probe.watching:
            self._call("step_ended", optimizer, is_primary)
        if is_primary:
            self._watched_count += probe.watching
            probe.watching = self._should_watch(probe.step + 1)

    def step_over(self, optimizer_id):
        for inspector in self._with_step_state:
            inspector.step_over(optimizer_id)

    def forked(self):
        return [inspector.forked() for inspector in self.inspectors]

    def ends(self):
        self._call("ends")

    def _should_watch(self, step):
        if self._watched_count < FIRST_STEPS or step % EVERY == 0:
            return True
        if self.probe.budget.credit >= self._fair_share.next_cost() or (self.probe.world_size > 1 and is_due(step)):
            return True
        return any(inspector.eager for inspector in self._may_be_eager)

    def _call(self, moment, *args):
        for inspector in tuple(self.inspectors):
            try:
                getattr(inspector, moment)(*args)
            except Exception as error:
                self.inspectors.remove(inspector)
                self.probe.failed("the inspector %r, which is now disabled" % inspector.name, error)
