"""Inspectors: the checks that read tensors and therefore cost time. One inspector per file.

The probe core counts steps and reads losses on every step. Everything that reads tensors is an inspector. The probe calls
each inspector at the same few points of a step and catches its exceptions: an inspector that raises is disabled, and a
`probe-note` reports it. An inspector asks the budget before it does anything that costs more than a few microseconds.
"""

import functools


class Inspector(object):
    name = ""
    eager = False
    """True if the inspector must run on the next step regardless of its cost. Set rarely, and for a few steps only."""

    def __init__(self, probe):
        self.probe = probe

    def backward_begins(self, loss, first):
        """Called before an outermost backward. `first`: it is the first since the primary optimizer's last step."""

    def step_begins(self, optimizer, is_primary):
        """Called before an outermost optimizer step. The steps of the primary optimizer are the run's steps."""

    def step_ended(self, optimizer, is_primary):
        """Called after the step. If `is_primary` is true, `probe.step` already counts it."""

    def step_over(self, optimizer_id):
        """Called after a step has returned or raised. Discard what was kept from before the step."""

    def forked(self):
        """Called in the child of a fork. Drop all device tensors and return them: they must not be freed in the child."""

    def ends(self):
        """Called before the process exits normally."""


def wrap_function(owners, attribute, wrapper):
    """Make a function call `wrapper(original, args, kwargs)`, in all modules or classes that have it: a function is pickled
    by module and name, and must be found there. It is wrapped only once.
    """
    original = getattr(owners[0], attribute, None)
    if original is None or getattr(original, "_holdfast", False):
        return

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return wrapper(original, args, kwargs)

    wrapped._holdfast = True
    for owner in owners:
        if getattr(owner, attribute, None) is original:
            setattr(owner, attribute, wrapped)


def all_inspectors(probe):
    """Return all inspectors, in call order, wrapped in one `SampledInspectors`."""
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
    fair_share = FairShare(probe, (GradientsInspector.name, WeightUpdatesInspector.name))
    graph = GraphInspector(probe, names)
    inspectors = [
        graph,
        StaleGradientsInspector(probe, names, graph),
        GradientsInspector(probe, names, fair_share),
        WeightUpdatesInspector(probe, names, fair_share),
        ChecksumInspector(probe),
        FrozenInspector(probe, names),
        CheckpointSavesInspector(probe, names),
    ]
    return [SampledInspectors(probe, inspectors, fair_share)]
