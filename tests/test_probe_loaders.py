"""Batches, epochs and evaluations, from the DataLoader alone."""

from probe_harness import run
from test_probe_steps import tiny

from holdfast.schema import events

LOADERS = """
from torch.utils.data import DataLoader, TensorDataset
train = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=8)
valid = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def one_epoch():
    for (batch,) in train:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


def test_epochs_batches_and_both_kinds_of_evaluation(tmp_path):
    """Epochs are exhaustions of the training loader; an evaluation is seen whether gradients are disabled around the
    loop or only inside it, and adds nothing to the steps."""
    probed = run(
        tmp_path,
        tiny(
            LOADERS
            + """
for epoch in range(2):
    one_epoch()
    with torch.no_grad():
        for (batch,) in valid:
            model(batch)
    for (batch,) in valid:
        with torch.inference_mode():
            model(batch)
"""
        ),
    )
    assert [(epoch.epoch, epoch.step, epoch.batches) for epoch in probed.of(events.Epoch)] == [(1, 3, 3), (2, 6, 3)]
    assert [(seen.step, seen.fetches) for seen in probed.of(events.Evaluation)] == [(3, 3), (3, 3), (6, 3), (6, 3)]
    lines = probed.of(events.Step)
    assert [line.samples for line in lines] == [8, 8, 4, 8, 8, 4]
    assert [line.batch for line in lines[:3]] == [line.batch for line in lines[3:]]
    assert len({line.batch for line in lines}) == 3
    assert all(0 < line.data_wait <= line.seconds for line in lines)
    assert probed.beats[0].epoch == 2
    assert probed.beats[0].fetches == 18


def test_evaluation_is_left_out_of_the_step(tmp_path):
    """A slow evaluation between two steps does not make the second one slow."""
    probed = run(
        tmp_path,
        tiny(
            LOADERS
            + """
import time
one_epoch()
with torch.no_grad():
    for (batch,) in valid:
        time.sleep(0.2)
one_epoch()
"""
        ),
    )
    assert probed.of(events.Evaluation)[0].seconds > 0.5
    assert max(line.seconds for line in probed.of(events.Step)[1:]) < 0.2


def test_saving_within_an_evaluation_is_told_once(tmp_path):
    """Many trainings save between a validation and the next epoch: every second belongs to one thing."""
    probed = run(
        tmp_path,
        tiny(
            LOADERS
            + """
import time
class Slow:
    def __reduce__(self):
        time.sleep(1.0)
        return (int, ())
one_epoch()
with torch.no_grad():
    for (batch,) in valid:
        pass
torch.save(Slow(), "slow.pt")
one_epoch()
"""
        ),
    )
    assert probed.of(events.Saved)[0].seconds >= 1.0
    assert probed.of(events.Evaluation)[0].seconds < 0.5
    assert max(line.seconds for line in probed.of(events.Step)[1:]) < 0.5


def test_worker_processes_stay_silent(tmp_path):
    """Loader workers, forked and spawned, write nothing, even where their datasets train something of their own."""
    probed = run(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Busy(Dataset):
            def __len__(self): return 8
            def __getitem__(self, index):
                weight = torch.ones(1, requires_grad=True)
                (weight * index).sum().backward()
                next(iter(DataLoader(torch.zeros(4, 1))))
                return weight.grad
        if __name__ == "__main__":
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for method in ("fork", "spawn"):
                for batch in DataLoader(Busy(), batch_size=4, num_workers=2, multiprocessing_context=method):
                    model(batch).mean().backward()
                    optimizer.step()
        """,
    )
    assert probed.files == ["rank-0.jsonl"]
    assert probed.steps == [1, 2, 3, 4]
    assert len(probed.of(events.ProbeAttached)) == 1
    assert len(probed.by_file["interpreters.jsonl"]) == 2


def test_a_forked_process_that_trains_speaks_for_itself(tmp_path):
    """A fork drops the parent's probe; if the child then trains, it writes a file of its own and has a heartbeat slot of
    its own."""
    probed = run(
        tmp_path,
        tiny("""
        import multiprocessing
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(steps):
            for _ in range(steps):
                loss().backward()
                optimizer.step()
        train(2)
        child = multiprocessing.get_context("fork").Process(target=train, args=(5,))
        child.start()
        child.join()
        train(1)
        """),
    )
    assert probed.steps == [1, 2, 3]
    assert {slot: beat.step for slot, beat in probed.beats.items()} == {0: 3, 255: 5}
    own = [name for name in probed.files if "-pid-" in name]
    assert len(own) == 1
    forked = probed.by_file[own[0]]
    assert isinstance(forked[0], events.ProbeAttached)
    assert not forked[0].primary
    assert [event.step for event in forked if isinstance(event, events.Step)] == [1, 2, 3, 4, 5]
    assert isinstance(forked[-1], events.ProcessExiting)
