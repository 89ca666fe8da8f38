"""Detection of optimizers whose gradients are computed inside their own steps.

`optimizer.step(closure)` calls the closure, and with it the backward, after the step has begun. Such a step does not use
the `.grad` from before the step. It uses the `.grad` that is there afterwards, provided the closure ran only once.
"""


class Closures(object):
    def __init__(self):
        self._running = None
        self._backward_count = 0
        self._with_closure = set()  # ids of optimizers in whose steps a backward was seen

    def step_begins(self, optimizer):
        self._running = id(optimizer)
        self._backward_count = 0

    def backward_begins(self):
        if self._running is not None:
            self._backward_count += 1
            self._with_closure.add(self._running)

    def step_ended(self):
        """Return how many backwards ran inside the step."""
        if not self._backward_count:
            self._with_closure.discard(self._running)
        self._running = None
        return self._backward_count

    def step_over(self):
        self._running = None

    def uses_closure(self, optimizer):
        return id(optimizer) in self._with_closure

    def keep_only(self, optimizer_ids):
        self._with_closure.intersection_update(optimizer_ids)
