"""What a validation draws from the random numbers of the training, so that one that is left out leaves them as if it had been.

Ultralytics draws once for each image that it loads, also to validate, and where there are no workers from the very numbers that
augmentation draws from next. One image is loaded to see how often; each validation that is made shows whether that was right.
"""

import random

from ...snapshots.rng import draw_on_from, drawn_so_far

MAX_DRAWS_OF_ONE = 64
OTHERWISE = "a training with fewer validations is not the one with all of them: random numbers are drawn otherwise"


class RngParity(object):
    def __init__(self, torch, note):
        self._torch = torch
        self._note = note
        self._loader = None
        self._count = None

    def instead_of(self, loader):
        """Draws as often as a validation with this loader would."""
        count = self.count(loader)
        if count is None:
            self._note(OTHERWISE, "what a validation draws could not be told")
            return
        for _ in range(count):
            random.random()  # noqa: S311 - it stands for one of the training's

    def check(self, loader, before):
        """After a validation: `before` is Python's state from before it."""
        count = self.count(loader)
        expected = random.Random()  # noqa: S311
        expected.setstate(before)
        for _ in range(count or 0):
            expected.random()
        if count is None or expected.getstate() != random.getstate():
            self._note(OTHERWISE, "a validation did not draw %s times" % count)

    def count(self, loader):
        """How often one pass draws; None where that cannot be told."""
        if loader is not self._loader:
            self._loader = loader
            self._count = 0 if loader.num_workers else self._count_of(loader.dataset)
        return self._count

    def _count_of(self, dataset):
        before, python = drawn_so_far(self._torch), random.getstate()
        try:
            dataset[0]
            after, drawn = drawn_so_far(self._torch), _draws_between(python, random.getstate())
        finally:
            draw_on_from(self._torch, before)
        same = all(_is_same(before[name], after[name]) for name in before if name != "python")
        return drawn * len(dataset) if same and drawn is not None else None


def _draws_between(before, after):
    drawing = random.Random()  # noqa: S311
    drawing.setstate(before)
    for count in range(MAX_DRAWS_OF_ONE + 1):
        if drawing.getstate() == after:
            return count
        drawing.random()
    return None


def _is_same(one, other):
    if isinstance(one, (list, tuple)):
        return all(map(_is_same, one, other))
    return one.equal(other) if hasattr(one, "equal") else one == other
