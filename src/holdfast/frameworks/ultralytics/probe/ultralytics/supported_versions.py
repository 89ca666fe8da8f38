"""The Ultralytics internals that exact resuming depends on, and the versions that it was tested with.

It starts a training loop in the middle, which only works with the loop that it was written for. So the source of the
loop and of the loader is compared with the tested ones. With any other version, the training resumes from last.pt
instead.
"""

import hashlib
import inspect

TESTED = {
    "34c8d4a3": "8.4.190",
}
"""Hash of the source of the loop and the loader -> a version that has it."""


def why_not_exact(trainer_module):
    """Return why trainings of this version cannot resume exactly, or None."""
    try:
        from ultralytics import __version__ as version
        from ultralytics.data.build import InfiniteDataLoader, _RepeatSampler

        trainer = trainer_module.BaseTrainer
        sources = [inspect.getsource(part) for part in (trainer._do_train, InfiniteDataLoader, _RepeatSampler)]
    except (ImportError, AttributeError, OSError, TypeError) as error:
        return "this version of ultralytics has a different structure (%s)" % error
    found = hashlib.sha256("".join(sources).encode("utf-8")).hexdigest()[:8]
    if found in TESTED:
        return None
    tried = ", ".join(sorted(set(TESTED.values())))
    return "ultralytics %s has another training loop (%s) than the tested versions (%s)" % (version, found, tried)
