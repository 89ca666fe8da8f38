"""Learning-rate schedulers: which were created, how many steps each was created for, and how many it has done."""

import weakref

MAX_SCHEDULERS = 16
TOTAL_ATTRIBUTES = ("total_steps", "T_max", "total_iters")


class LrSchedulers(object):
    def __init__(self, probe):
        self.probe = probe
        self.has_new = False
        """Whether a scheduler was created for which no event was emitted yet."""
        self._schedulers = []
        self._emitted = 0

    def add(self, scheduler):
        """Add a scheduler. Attributes that a subclass sets after this `__init__` are read at the next step."""
        if len(self._schedulers) < MAX_SCHEDULERS:
            self._schedulers.append(weakref.ref(scheduler))
            self.has_new = True

    def emit_new(self):
        self.has_new = False
        self.probe.see("schedules")
        for reference in self._schedulers[self._emitted :]:
            self._emit(reference())
        self._emitted = len(self._schedulers)

    def end(self):
        for reference in self._schedulers:
            self._emit(reference())

    def _emit(self, scheduler):
        if scheduler is None:
            return
        done, planned = getattr(scheduler, "last_epoch", None), _get_planned_steps(scheduler)
        fields = {"planned": planned, "done": done if isinstance(done, int) else None}
        known = {name: value for name, value in fields.items() if value is not None}
        self.probe.emit("schedule", step=self.probe.step, scheduler=type(scheduler).__name__, **known)


def _get_planned_steps(scheduler):
    """Return the number of scheduler steps that it was created for, or None if it is unknown."""
    for name in TOTAL_ATTRIBUTES:
        total = getattr(scheduler, name, None)
        if isinstance(total, int) and total > 0:
            return total
    for function in getattr(scheduler, "lr_lambdas", None) or ():
        # The schedules of transformers are functools.partial objects that contain the total.
        total = (getattr(function, "keywords", None) or {}).get("num_training_steps")
        if isinstance(total, int) and total > 0:
            return total
    return None
