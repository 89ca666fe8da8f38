"""Which optimizers have their gradients computed inside their own steps.

`optimizer.step(closure)` calls the closure, and with it the backward, after the step has begun. What lies in `.grad` before
such a step is not what the step uses; what lies there after it is, where the closure ran once.
"""


class Closures(object):
    def __init__(self):
        self._running = None
        self._backwards = 0
        self._known = set()  # ids of optimizers in whose steps a backward was seen

    def step_begins(self, optimizer):
        self._running = id(optimizer)
        self._backwards = 0

    def backward_begins(self):
        if self._running is not None:
            self._backwards += 1
            self._known.add(self._running)

    def step_ended(self):
        """How many backwards ran inside the step."""
        if not self._backwards:
            self._known.discard(self._running)
        self._running = None
        return self._backwards

    def step_over(self):
        self._running = None

    def has(self, optimizer):
        return id(optimizer) in self._known

    def keep_only(self, living):
        self._known.intersection_update(living)
