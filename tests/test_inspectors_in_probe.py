"""The looks in a real process under the real probe: one sick training that shows everything, and two ranks."""

import sys

import probe_harness

from holdfast.schema import events

SICK = """
    import torch

    class LeavesOneOut(torch.optim.SGD):
        def step(self, closure=None):
            before = model[0].weight.detach().clone()
            super().step(closure)
            with torch.no_grad():
                model[0].weight.copy_(before)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = LeavesOneOut([*model[0].parameters(), model[2].weight], lr=0.01)
    for step in range(12):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "sick.pt")
"""

RANKS = """
    import torch
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank()
    for step in range(4):
        optimizer.zero_grad()
        forward = model if step < 2 else model.module
        forward(torch.ones(2, 4) * (rank + step)).square().mean().backward()
        optimizer.step()
    # A rank that leaves while the other still talks to it aborts that one: they part through the store, which outlives both.
    # Gloo's threads may still hold tensors while the interpreter is taken down, which aborts it now and then (bare too).
    store = torch.distributed.distributed_c10d._get_default_store()
    store.set("done-%d" % rank, "1")
    store.wait(["done-0", "done-1"])
    import atexit, os
    atexit._run_exitfuncs()
    os._exit(0)
"""


def test_a_sick_training_shows_all_its_faults(tmp_path):
    """A frozen weight, a bias outside the optimizer, gradients never cleared, and a checkpoint that is what is live."""
    probed = probe_harness.run(tmp_path, SICK)
    (graph,) = probed.of(events.Graph)
    assert (graph.used, graph.held, graph.used_not_held) == (4, 3, ["2.bias"])
    assert probed.of(events.StaleGradients)[0].tensors == 3
    stuck = [tensor for event in probed.of(events.WeightUpdates) for tensor in event.stuck]
    assert {tensor.name for tensor in stuck} == {"0.weight"}
    assert stuck[0].update_ulps > 1
    (saved,) = probed.of(events.Saved)
    assert (saved.path, saved.matches) == (str(tmp_path / "sick.pt"), "equal")
    assert probed.of(events.Step)[0].grad_norm > 0
    assert probed.beats[0].saves == 1


def test_ranks_that_diverge_have_other_checksums(tmp_path):
    """Equal while the replica is called, different once the raw module is."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    probed = probe_harness.run(tmp_path, RANKS, command=command)
    first, second = ({event.step: event.value for event in probed.of(events.Checksum, rank)} for rank in (0, 1))
    assert sorted(first) == sorted(second) == [1, 2, 4]
    assert (first[1] == second[1], first[2] == second[2], first[4] == second[4]) == (True, True, False)
