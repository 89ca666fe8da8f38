"""How long the training has waited for its snapshots: the cost of a snapshot here, and the total spent."""

FIRST_SECONDS = 0.02
"""The assumed cost before the first snapshot."""
USUAL_OF = 5
"""The cost is the median of this many snapshots: the first one has to allocate memory for its copy."""
OUT_OF_THE_WAY = 3.0
"""A cost above this multiple of the typical cost is an outlier: the machine was busy with something else."""
FORGIVEN_SECONDS = 0.25
"""This much of the outliers is not counted per attempt: a single one would delay the next snapshots until it is paid off."""


class CostModel(object):
    def __init__(self):
        self._last = []
        self._spent = 0.0
        self._forgiven = 0.0

    def another(self):
        """Start counting a new snapshot."""
        if len(self._last) == USUAL_OF:
            self._forgiven += self._excess(self._last.pop(0))
        self._last.append(0.0)

    def add(self, seconds):
        """Add a wait of the training for the newest snapshot; more may follow."""
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
        """The total spent, minus outliers."""
        return self._spent - min(FORGIVEN_SECONDS, self._forgiven + sum(map(self._excess, self._last)))

    def _excess(self, cost):
        return max(0.0, cost - OUT_OF_THE_WAY * self.usual)
