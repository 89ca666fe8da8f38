from inspector_stub import StubProbe

from holdfast.probe.holdfast_probe.fast_path import EVERY
from holdfast.probe.holdfast_probe.inspectors import Inspector
from holdfast.probe.holdfast_probe.inspectors.fair_share import FairShare
from holdfast.probe.holdfast_probe.inspectors.sampling import FIRST_STEPS, SampledInspectors


class Counts(Inspector):
    name = "counts"

    def __init__(self, probe):
        super().__init__(probe)
        self.steps = []

    def step_begins(self, optimizer, clock):
        self.steps.append(self.probe.step + 1)


class Broken(Inspector):
    name = "broken"

    def step_begins(self, optimizer, clock):
        raise ValueError("of the look's own")


def test_without_credit_few_steps_are_watched():
    """The first ones and now and then one; all of them once there is something to spend."""
    probe = StubProbe()
    inspector = Counts(probe)
    fair_share = FairShare(probe, ("counts",))
    fair_share.record_cost("counts", 0.001)
    watch = SampledInspectors(probe, [inspector], fair_share)
    probe.budget.credit = -1.0
    for _ in range(4 * EVERY):
        watch.step_begins(None, True)
        probe.step += 1
        watch.step_ended(None, True)
    assert inspector.steps == [*range(1, FIRST_STEPS + 1), 3 * EVERY, 4 * EVERY]
    probe.budget.credit = 1.0
    watch.step_ended(None, True)
    watch.step_begins(None, True)
    assert inspector.steps[-1] == probe.step + 1


def test_a_look_that_raises_is_switched_off_alone():
    """The others go on, and the probe is told which one failed."""
    probe, failures = StubProbe(), []
    probe.failed = lambda where, error: failures.append((where, str(error)))
    inspector = Counts(probe)
    watch = SampledInspectors(probe, [Broken(probe), inspector], FairShare(probe, ("counts",)))
    for _ in range(3):
        watch.step_begins(None, True)
    assert len(inspector.steps) == 3
    assert failures == [("the inspector 'broken', which is now disabled", "of the look's own")]
