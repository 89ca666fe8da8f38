"""How long the training has waited for its snapshots: what one costs here, and what counts as spent."""

FIRST_SECONDS = 0.02
"""What one is taken to cost before any was."""
USUAL_OF = 5
"""What one costs is the median of the last so many: the first has to find memory for its copy."""
OUT_OF_THE_WAY = 3.0
"""So many times the usual cost, and more: the machine was busy with something else."""
FORGIVEN_SECONDS = 0.25
"""So much of such costs does not count, in a life: a single one would keep the next snapshots waiting until it is earned."""


class CostModel(object):
    def __init__(self):
        self._last = []
        self._spent = 0.0
        self._forgiven = 0.0

    def another(self):
        """A snapshot is begun."""
        if len(self._last) == USUAL_OF:
            self._forgiven += self._excess(self._last.pop(0))
        self._last.append(0.0)

    def add(self, seconds):
        """The training waited so long for the newest; more may follow."""
        self._last[-1] += seconds
        self._spent += seconds

    @property
    def any(self):
        return bool(self._last)

    @property
    def newest(self):
        return self._last[-1]

    @property
    def usual(self):
        return sorted(self._last)[len(self._last) // 2] if self._last else FIRST_SECONDS

    @property
    def counted(self):
        """What was spent, less what was out of the way."""
        return self._spent - min(FORGIVEN_SECONDS, self._forgiven + sum(map(self._excess, self._last)))

    def _excess(self, cost):
        return max(0.0, cost - OUT_OF_THE_WAY * self.usual)
