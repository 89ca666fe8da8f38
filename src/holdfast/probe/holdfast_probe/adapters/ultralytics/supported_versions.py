"""The insides of Ultralytics that exact going on stands on, and the versions of them that it was tried with.

It starts a training loop in its middle, which only works if the loop is the one that it was made for. So the source of that
loop and of the loader is compared with those that were tried; of any other version, last.pt is gone on from instead.
"""

import hashlib
import inspect

TESTED = {
    "34c8d4a3": "8.4.190",
}
"""What a loop's and a loader's source come to -> a version that has them."""


def why_not_exact(trainer_module):
    """Why this version's trainings cannot be gone on from exactly, or None."""
    try:
        from ultralytics import __version__ as version
        from ultralytics.data.build import InfiniteDataLoader, _RepeatSampler

        trainer = trainer_module.BaseTrainer
        sources = [inspect.getsource(part) for part in (trainer._do_train, InfiniteDataLoader, _RepeatSampler)]
    except (ImportError, AttributeError, OSError, TypeError) as error:
        return "this version of ultralytics is built otherwise (%s)" % error
    found = hashlib.sha256("".join(sources).encode("utf-8")).hexdigest()[:8]
    if found in TESTED:
        return None
    tried = ", ".join(sorted(set(TESTED.values())))
    return "ultralytics %s has another training loop (%s) than those tried (%s)" % (version, found, tried)
