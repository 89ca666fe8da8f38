"""Looks: the things that cost something to see, one a file.

The probe core counts steps and reads losses on every step; whatever reads tensors is a look. The probe calls each look at
the same few moments, inside a guard: a look that raises is switched off and says so in a `probe-note`. A look asks the
budget before it does anything that costs more than a few microseconds.
"""


class Inspector(object):
    name = ""
    eager = False
    """Whether it wants to see the next step whatever that costs: for a few steps, seldom."""

    def __init__(self, probe):
        self.probe = probe

    def backward_begins(self, loss, first):
        """An outermost backward is about to run on `loss`; `first` when it is the first since the clock's last step."""

    def step_begins(self, optimizer, clock):
        """An outermost optimizer step is about to run; `clock` when this optimizer's steps are the run's steps."""

    def step_ended(self, optimizer, clock):
        """It has run. `probe.step` already counts it when `clock` is true."""

    def step_over(self, optimizer_id):
        """A step that began has returned or raised: what was kept from before it goes."""

    def forked(self):
        """In the child of a fork: drops what is on a device, and returns it, because it must not be freed there."""

    def ends(self):
        """The process is about to end in an orderly way."""


def all_inspectors(probe):
    """All looks behind one door, in the order in which they are called."""
    from ..param_names import ParamNames
    from .checkpoint_saves import CheckpointSavesInspector
    from .checksum import ChecksumInspector
    from .fair_share import FairShare
    from .frozen import FrozenInspector
    from .gradients import GradientsInspector
    from .graph import GraphInspector
    from .sampling import SampledInspectors
    from .stale_gradients import StaleGradientsInspector
    from .weight_updates import WeightUpdatesInspector

    names = ParamNames(probe)
    turns = FairShare(probe, (GradientsInspector.name, WeightUpdatesInspector.name))
    graph = GraphInspector(probe, names)
    inspectors = [
        graph,
        StaleGradientsInspector(probe, names, graph),
        GradientsInspector(probe, names, turns),
        WeightUpdatesInspector(probe, names, turns),
        ChecksumInspector(probe),
        FrozenInspector(probe, names),
        CheckpointSavesInspector(probe, names),
    ]
    return [SampledInspectors(probe, inspectors, turns)]
