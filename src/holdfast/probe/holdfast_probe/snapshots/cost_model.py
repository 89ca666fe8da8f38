"""How long the training has waited for its snapshots: the cost of a snapshot here, and the total spent."""

FIRST_SECONDS = 0.02
"""The assumed cost before the first snapshot."""
MEDIAN_OF = 5
"""The cost is the median of this many snapshots: the first one has to allocate memory for its copy."""
OUTLIER_FACTOR = 3.0
"""A cost above this multiple of the typical cost is an outlier: the machine was busy with something else."""
MAX_FORGIVEN_SECONDS = 0.25
"""This much of the outliers is not counted per attempt: a single one would delay the next snapshots until it is paid
off.
"""


class CostModel(object):
    def __init__(self):
        self._costs = []
        self._spent = 0.0
        self._forgiven = 0.0

    def start_snapshot(self):
        """Start counting a new snapshot."""
        if len(self._costs) == MEDIAN_OF:
            self._forgiven += self._excess(self._costs.pop(0))
        self._costs.append(0.0)

    def add(self, seconds):
        """Add a wait of the training for the newest snapshot; more may follow."""
        self._costs[-1] += seconds
        self._spent += seconds

    @property
    def has_snapshots(self):
        return bool(self._costs)

    @property
    def last(self):
        return self._costs[-1]

    @property
    def typical(self):
        return sorted(self._costs)[len(self._costs) // 2] if self._costs else FIRST_SECONDS

    @property
    def counted_seconds(self):
        """The total spent, minus outliers."""
        return self._spent - min(MAX_FORGIVEN_SECONDS, self._forgiven + sum(map(self._excess, self._costs)))

    def _excess(self, cost):
        return max(0.0, cost - OUTLIER_FACTOR * self.typical)
