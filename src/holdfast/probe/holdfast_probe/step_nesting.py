"""Which optimizer steps run right now, in each thread, and what is told when one is over.

A step that raises never says so. Frames would tell, but a frame that is kept keeps all its variables: a training that
catches an out-of-memory error and tries again smaller would find its memory still taken. So of a frame only its number and
its code are kept, and whether it still runs is seen by walking up from where we are.
"""

from threading import get_ident

MAX_THREADS = 64


class StepNesting(object):
    def __init__(self):
        self.by_thread = {}
        """Thread -> (id of the frame, its code) of each step that it runs, outermost first."""
        self.nested = False
        """Whether a step was ever seen inside another."""

    def begins(self, frame):
        """True when the step is an outermost one."""
        thread = get_ident()
        steps = self.by_thread.get(thread)
        if steps and _runs(steps[0], frame.f_back):
            steps.append((id(frame), frame.f_code))
            self.nested = True
            return False
        if len(self.by_thread) >= MAX_THREADS:
            self.by_thread.clear()
        self.by_thread[thread] = [(id(frame), frame.f_code)]
        return True

    def ended(self, frame):
        """True when an outermost step has ended."""
        thread = get_ident()
        steps = self.by_thread.get(thread)
        step = (id(frame), frame.f_code)
        if not steps or step not in steps:
            return False
        if steps[0] == step:
            del self.by_thread[thread]
            return True
        del steps[steps.index(step) :]
        return False

    def is_above(self, frame):
        """Whether `frame` was called from a step that runs."""
        steps = self.by_thread.get(get_ident())
        if not steps:
            return False
        if _runs(steps[0], frame):
            return True
        del self.by_thread[get_ident()]
        return False


def _runs(step, frame):
    number, code = step
    while frame is not None:
        if id(frame) == number and frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class Arguments(tuple):  # type: ignore[type-arg]  # noqa: SLOT001 - it is there to carry something
    """A step's arguments, as torch lets a hook replace them. The step itself gets what is in them, so nothing changes for
    it; but they go when the call is over, also when it raised, and then `until` goes too.
    """


class Until(object):
    __slots__ = ("_optimizer_id", "_steps")

    def __init__(self, steps, optimizer_id):
        self._steps = steps
        self._optimizer_id = optimizer_id

    def __del__(self):
        try:
            self._steps.over(self._optimizer_id)
        except Exception:
            pass


def until_over(args, steps, optimizer):
    carrying = Arguments(args)
    carrying.until = Until(steps, id(optimizer))
    return carrying
