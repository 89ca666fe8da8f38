"""The optimizer steps that are running in each thread, and a callback for when one is over.

No hook runs when a step raises. Keeping its frame would keep all of the frame's variables alive: a training that
catches an out-of-memory error and retries with less would find its memory still in use. So only the id and the code of
a frame are kept. To find out whether it still runs, the code walks up the stack from the current frame.
"""

from threading import get_ident

MAX_THREADS = 64


class StepNesting(object):
    def __init__(self):
        self.by_thread = {}
        """Thread -> (frame id, frame code) of each running step, outermost first."""
        self.nested = False
        """Whether a step was ever seen inside another."""

    def begin(self, frame):
        """Add a step, and return True if it is an outermost one."""
        thread = get_ident()
        steps = self.by_thread.get(thread)
        if steps and _is_running(steps[0], frame.f_back):
            steps.append((id(frame), frame.f_code))
            self.nested = True
            return False
        if len(self.by_thread) >= MAX_THREADS:
            self.by_thread.clear()
        self.by_thread[thread] = [(id(frame), frame.f_code)]
        return True

    def end(self, frame):
        """Remove a step, and return True if it was an outermost one."""
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
        """Return True if `frame` was called from a running step."""
        steps = self.by_thread.get(get_ident())
        if not steps:
            return False
        if _is_running(steps[0], frame):
            return True
        del self.by_thread[get_ident()]
        return False


def _is_running(step, frame):
    frame_id, code = step
    while frame is not None:
        if id(frame) == frame_id and frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class Arguments(tuple):  # type: ignore[type-arg]  # noqa: SLOT001 - it carries an attribute
    """A step's arguments, which torch lets a hook replace. The step gets the same values, so nothing changes for it.
    But the tuple is freed when the call is over, even if it raised, and then `releaser` is freed too.
    """


class Releaser(object):
    """Calls `Steps.release` when it is freed."""

    __slots__ = ("_optimizer_id", "_steps")

    def __init__(self, steps, optimizer_id):
        self._steps = steps
        self._optimizer_id = optimizer_id

    def __del__(self):
        try:
            self._steps.release(self._optimizer_id)
        except Exception:
            pass


def release_after_step(args, steps, optimizer):
    """Return the step's arguments as a tuple that calls `steps.release` when it is freed."""
    arguments = Arguments(args)
    arguments.releaser = Releaser(steps, id(optimizer))
    return arguments
