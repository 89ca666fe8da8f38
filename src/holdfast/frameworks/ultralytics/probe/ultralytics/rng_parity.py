"""The random numbers that a validation draws, so that a skipped validation leaves the random state as if it had run.

Ultralytics draws once for each image that it loads, also for validation. Without workers it draws from the same random
state as the next augmentation. One image is loaded to count the draws; each validation that runs verifies the count.
"""

import random

from ...snapshots.rng import get_rng_states, set_rng_states

MAX_DRAWS_PER_IMAGE = 64
NOT_EQUIVALENT = "a training with fewer validations differs from one with all of them: it draws other random numbers"


class RngParity(object):
    def __init__(self, torch, note):
        self._torch = torch
        self._note = note
        self._loader = None
        self._count = None

    def skip_validation(self, loader):
        """Draw as often as a validation with this loader would."""
        count = self.count(loader)
        if count is None:
            self._note(NOT_EQUIVALENT, "the random numbers drawn by a validation could not be determined")
            return
        for _ in range(count):
            random.random()  # noqa: S311 - replaces a draw of the training

    def check(self, loader, before):
        """Verify the count after a validation. `before` is Python's random state before it."""
        count = self.count(loader)
        expected = random.Random()  # noqa: S311
        expected.setstate(before)
        for _ in range(count or 0):
            expected.random()
        if count is None or expected.getstate() != random.getstate():
            self._note(NOT_EQUIVALENT, "a validation did not draw %s times" % count)

    def count(self, loader):
        """Return how often one pass draws; None if that cannot be determined."""
        if loader is not self._loader:
            self._loader = loader
            self._count = 0 if loader.num_workers else self._count_draws(loader.dataset)
        return self._count

    def _count_draws(self, dataset):
        before, python = get_rng_states(self._torch), random.getstate()
        try:
            dataset[0]
            after, draws = get_rng_states(self._torch), _count_draws_between(python, random.getstate())
        finally:
            set_rng_states(self._torch, before)
        same = all(_is_same(before[name], after[name]) for name in before if name != "python")
        return draws * len(dataset) if same and draws is not None else None


def _count_draws_between(before, after):
    generator = random.Random()  # noqa: S311
    generator.setstate(before)
    for count in range(MAX_DRAWS_PER_IMAGE + 1):
        if generator.getstate() == after:
            return count
        generator.random()
    return None


def _is_same(one, other):
    if isinstance(one, (list, tuple)):
        return all(map(_is_same, one, other))
    return one.equal(other) if hasattr(one, "equal") else one == other
