"""Learning-rate schedulers: which were made, for how many of their steps, and how many they did."""

import weakref

MAX_SCHEDULERS = 16
TOTALS = ("total_steps", "T_max", "total_iters")


class LrSchedulers(object):
    def __init__(self, probe):
        self.probe = probe
        self.unsaid = False
        """A scheduler was made and no event says so yet."""
        self._made = []
        self._said = 0

    def made(self, scheduler):
        """Called at the end of `LRScheduler.__init__`; what a subclass sets after that is read at the next step."""
        if len(self._made) < MAX_SCHEDULERS:
            self._made.append(weakref.ref(scheduler))
            self.unsaid = True

    def say(self):
        self.unsaid = False
        self.probe.see("schedules")
        for reference in self._made[self._said :]:
            self._emit(reference())
        self._said = len(self._made)

    def end(self):
        for reference in self._made:
            self._emit(reference())

    def _emit(self, scheduler):
        if scheduler is None:
            return
        fields = {"step": self.probe.step, "scheduler": type(scheduler).__name__}
        planned = _planned(scheduler)
        if planned is not None:
            fields["planned"] = planned
        done = getattr(scheduler, "last_epoch", None)
        if isinstance(done, int):
            fields["done"] = done
        self.probe.emit("schedule", **fields)


def _planned(scheduler):
    """Scheduler steps that it was made for."""
    for name in TOTALS:
        total = getattr(scheduler, name, None)
        if isinstance(total, int) and total > 0:
            return total
    for function in getattr(scheduler, "lr_lambdas", None) or ():
        # The schedules of transformers are partial functions of the total.
        total = (getattr(function, "keywords", None) or {}).get("num_training_steps")
        if isinstance(total, int) and total > 0:
            return total
    return None
