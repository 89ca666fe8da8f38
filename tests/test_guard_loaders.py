"""A training under `holdfast.guard` goes on exactly over loaders, samplers and datasets that draw and count in their own ways."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random

import numpy as np
import pytest
import torch
from guarded import Lives
from test_guard_positions import Stop
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset

from holdfast.probe.holdfast_probe.guard import guard
from holdfast.probe.holdfast_probe.snapshots import sampler_replay
from holdfast.probe.holdfast_probe.snapshots.loader_registry import Loaders
from holdfast.probe.holdfast_probe.snapshots.loader_state import MAX_OBJECTS, LoaderState
from holdfast.probe.holdfast_probe.snapshots.rng import get_rng_states

NEVER = 1e9
SAMPLES, BATCH, EPOCHS = 16, 2, 3
BATCHES = SAMPLES // BATCH


class Plain(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor(float(index))


class RngParity(Dataset):
    """Each sample is drawn from what `draw` draws from."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor(index + self.draw())


def read(folder, at, given, snapshot_after=None):
    """A life: all that it read. `given()(epoch)` is what it reads in an epoch. A snapshot is taken after so many batches, or, where that is
    negative, before the epoch of that number. The training draws from the same random numbers as everything else.
    """
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    made = given()
    with guard(folder=folder, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
        seen = run.state.setdefault("seen", [])
        for epoch in run.epochs(EPOCHS):
            for batch in run.batches(made(epoch)):
                run._snapshots.flush()
                at("batch", len(seen))
                drawn = [random.random(), float(np.random.rand()), torch.rand(1).item()]  # noqa: NPY002
                seen.append([epoch, torch.as_tensor(batch).flatten().tolist(), drawn])
                if len(seen) == snapshot_after:
                    run.snapshot()
            if snapshot_after == -1 - epoch:
                run.snapshot()
    return json.dumps(seen)


MIDDLE = (BATCHES + 3, BATCHES + 5)
"""Of the second epoch: the place of a snapshot, and where it dies."""
SECOND = (-1, BATCHES + 2)
"""Before the second epoch, and in it."""
THIRD = (-2, 2 * BATCHES + 2)
ALL = [MIDDLE, SECOND, THIRD]


def comes_to_the_same(folder, given, where):
    snapshot_after, dies = where
    ends_the_same(folder, read, dies, given=given, snapshot_after=snapshot_after)


def ends_the_same(folder, training, dies, **options):
    """Killed before so many batches, as if it had not been."""
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    whole = Lives(folder / "whole" / "s", training=training, **options).to_the_end([])
    assert Lives(folder / "killed" / "s", training=training, **options).to_the_end([("batch", dies)]) == whole


def always(make):
    """The same loader in all epochs."""

    def given():
        loader = make()
        return lambda epoch: loader

    return given


# --- loaders with an __iter__ of their own -------------------------------------------------------------------------------


class Around(DataLoader):
    """As DataLoaderX and many more."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


class Announced(DataLoader):
    """Does something of its own, and leaves the rest to torch."""

    def __iter__(self):
        return super().__iter__()


@pytest.mark.parametrize("where", ALL)
@pytest.mark.parametrize(("kind", "workers"), [(Around, 0), (Around, 2), (Announced, 0), (Announced, 2)])
def test_a_loader_with_its_own_iter_goes_on(tmp_path, kind, workers, where):
    comes_to_the_same(
        tmp_path, always(lambda: kind(RngParity(random.random), BATCH, shuffle=True, num_workers=workers)), where
    )


def notes(folder, things):
    """What is said as a pass over these goes on."""

    def life(folder, at):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), guard(folder=folder, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
            for _ in run.epochs(1):
                for _ in run.batches(things()):
                    random.random()
                    run._snapshots.flush()
                    at("batch", run._position)
                    run.snapshot()
        return said.getvalue()

    said = Lives(folder / "s", training=life).to_the_end([("batch", 4)])
    return [line for line in said.splitlines() if "may not be exact" in line]


def test_workers_of_a_loader_with_its_own_iter_are_spoken_of(tmp_path):
    said = notes(tmp_path, lambda: Around(Plain(), BATCH, num_workers=1))
    assert ["its own __iter__ and workers" in line for line in said] == [True]


# --- generators that the program seeds -----------------------------------------------------------------------------------


def seeded_each_epoch():
    generator = torch.Generator()
    loader = DataLoader(Plain(), BATCH, shuffle=True, generator=generator)

    def at(epoch):
        generator.manual_seed(epoch)
        return loader

    return at


def made_each_epoch():
    return lambda epoch: DataLoader(Plain(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(epoch))


def seeded_once():
    loader = DataLoader(Plain(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    return lambda epoch: loader


def seeded_alike():
    """The same order in each epoch."""
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(Plain(), BATCH, shuffle=True, generator=generator)

    def at(epoch):
        generator.manual_seed(5)
        return loader

    return at


@pytest.mark.parametrize("where", ALL)
@pytest.mark.parametrize("given", [seeded_each_epoch, made_each_epoch, seeded_once])
def test_a_generator_that_the_program_sets_itself_is_left_to_it(tmp_path, given, where):
    comes_to_the_same(tmp_path, given, where)


@pytest.mark.parametrize("where", [MIDDLE, THIRD])
def test_the_same_seed_in_each_epoch_is_seen_once_there_were_two(tmp_path, where):
    comes_to_the_same(tmp_path, seeded_alike, where)


def test_a_loader_whose_pass_was_over_has_its_generator_where_it_was(tmp_path):
    """The death is in the validation, after the epoch's training."""

    def life(folder, at):
        loaders = [
            DataLoader(Plain(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(n)) for n in range(2)
        ]
        with guard(folder=folder, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
            seen = run.state.setdefault("seen", [])
            for _ in run.epochs(3):
                for loader in loaders:
                    for batch in run.batches(loader):
                        run._snapshots.flush()
                        at("batch", len(seen))
                        seen.append(batch.tolist())
                        if len(seen) == 3 * BATCHES + 3:
                            run.snapshot()
        return json.dumps(seen)

    ends_the_same(tmp_path, life, 3 * BATCHES + 4)


# --- things that are no loader -------------------------------------------------------------------------------------------


def drawn_on_the_go():
    return lambda epoch: (torch.randn(2) + random.random() for _ in range(BATCHES))


def zipped():
    loaders = [DataLoader(Plain(), BATCH, shuffle=True) for _ in range(2)]
    return lambda epoch: (torch.cat(pair) for pair in zip(*loaders, strict=True))


def cycled():
    loader = DataLoader(Plain(), 4 * BATCH, shuffle=True)

    def forever():
        while True:
            yield from loader

    return lambda epoch: itertools.islice(forever(), BATCHES)


class Stepwise:
    """Neither a sequence nor an iterator, with random numbers and a counter of its own."""

    def __init__(self):
        self.random = random.Random(4)
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for _ in range(BATCHES):
            yield self.random.random() + self.passes + np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("where", ALL)
@pytest.mark.parametrize("given", [drawn_on_the_go, zipped, cycled, always(Stepwise)])
def test_what_is_drawn_on_the_go_is_drawn_from_the_same_again(tmp_path, given, where):
    """While the training draws in between, from the same."""
    comes_to_the_same(tmp_path, given, where)


@pytest.mark.parametrize(
    ("things", "word"),
    [
        (lambda: range(8), None),
        (lambda: [torch.ones(1)] * 8, None),
        (lambda: (n for n in range(8)), None),
        (lambda: zip(range(8), range(8), strict=True), "iterator (zip)"),
        (lambda: itertools.islice(range(8), 8), "iterator (islice)"),
    ],
)
def test_only_what_may_differ_is_said_to(tmp_path, things, word):
    said = notes(tmp_path, things)
    assert [word in line for line in said] == ([] if word is None else [True])


def test_an_order_that_draws_more_than_is_kept_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler_replay, "MAX_BYTES", 1000)

    def drawing():
        for _ in range(8):
            random.random()
            yield torch.rand(1)

    class OnTheGo:
        def __iter__(self):
            return drawing()

    said = notes(tmp_path, OnTheGo)
    assert ["more often than can be saved" in line for line in said] == [True]


# --- what samplers, datasets and collate functions hold ------------------------------------------------------------------


class Shuffling(Sampler):
    """In the way that `order` does; with what it needs for that."""

    def __init__(self, order, **held):
        self.order_of = order
        self.__dict__.update(held)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(self.order_of(self))


def counting(self):
    self.epoch += 1
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()


def lazily(_):
    left = list(range(SAMPLES))
    while left:
        yield left.pop(random.randrange(len(left)))


def in_place(self):
    random.shuffle(self.indices)
    return list(self.indices)


def in_place_with_numpy(self):
    np.random.shuffle(self.indices)  # noqa: NPY002
    return self.indices.tolist()


class Wrapping(Sampler):
    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)

    def __iter__(self):
        return iter(self.base)


def own_random(make):
    return lambda: Shuffling(lambda self: self.rng.permutation(SAMPLES).tolist(), rng=make())


SAMPLERS = {
    "numpy generator": own_random(lambda: np.random.default_rng(0)),
    "numpy MT19937": own_random(lambda: np.random.Generator(np.random.MT19937(0))),
    "RandomState": own_random(lambda: np.random.RandomState(0)),
    "random.Random": lambda: Shuffling(lambda self: self.rng.sample(range(SAMPLES), SAMPLES), rng=random.Random(0)),
    "counter": lambda: Shuffling(counting, epoch=0),
    "lazy": lambda: Shuffling(lazily),
    "in place": lambda: Shuffling(in_place, indices=list(range(SAMPLES))),
    "numpy in place": lambda: Shuffling(in_place_with_numpy, indices=np.arange(SAMPLES)),
    "three levels down": lambda: Wrapping(Wrapping(RandomSampler(Plain(), generator=torch.Generator().manual_seed(2)))),
}


@pytest.mark.parametrize(("workers", "where"), [(0, MIDDLE), (0, SECOND), (0, THIRD), (2, MIDDLE)])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_s_own_state_comes_back(tmp_path, sampler, workers, where):
    comes_to_the_same(
        tmp_path, always(lambda: DataLoader(Plain(), BATCH, sampler=SAMPLERS[sampler](), num_workers=workers)), where
    )


def test_a_batch_sampler_s_own_state_comes_back(tmp_path):
    def make():
        sampler = Wrapping(RandomSampler(Plain(), generator=torch.Generator().manual_seed(2)))
        return DataLoader(Plain(), batch_sampler=BatchSampler(sampler, BATCH, drop_last=False))

    comes_to_the_same(tmp_path, always(make), SECOND)


class WithRandom(Plain):
    def __init__(self, rng):
        self.rng = rng

    def __getitem__(self, index):
        return torch.tensor(index + self.rng.random())


class LateRandom(Plain):
    """Makes its generator when it first needs one."""

    def __init__(self):
        self.rng = None

    def __getitem__(self, index):
        if self.rng is None:
            worker = torch.utils.data.get_worker_info()
            self.rng = np.random.default_rng(0 if worker is None else worker.seed)
        return torch.tensor(index + self.rng.random())


class Noisy:
    """A collate function."""

    def __init__(self):
        self.rngs = [random.Random(6), torch.Generator().manual_seed(6)]

    def __call__(self, samples):
        return torch.stack(samples) + self.rngs[0].random() + torch.rand(1, generator=self.rngs[1])


def with_closure():
    rng = np.random.default_rng(9)
    return lambda samples: torch.stack(samples) + rng.random()


@pytest.mark.parametrize("where", [MIDDLE, THIRD])
@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), (2, True)], ids=["alone", "workers", "workers that live on"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: {"dataset": WithRandom(np.random.default_rng(0))},
        lambda: {"dataset": WithRandom(random.Random(0))},
        lambda: {"dataset": LateRandom()},
        lambda: {"dataset": Plain(), "collate_fn": Noisy()},
        lambda: {"dataset": Plain(), "collate_fn": with_closure()},
    ],
    ids=["numpy", "random.Random", "late", "collate", "closure"],
)
def test_a_dataset_s_own_random_numbers_come_back(tmp_path, make, workers, persistent, where):
    """In the workers, too."""
    comes_to_the_same(
        tmp_path,
        always(
            lambda: DataLoader(
                batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=persistent, **make()
            )
        ),
        where,
    )


class Buffered(IterableDataset):
    """Draws as it goes, from the same random numbers as the training."""

    def __iter__(self):
        buffer = list(range(SAMPLES))
        while buffer:
            yield float(buffer.pop(random.randrange(len(buffer))))


def test_an_iterable_dataset_without_workers_draws_from_the_same(tmp_path):
    comes_to_the_same(tmp_path, always(lambda: DataLoader(Buffered(), BATCH)), MIDDLE)


def test_looking_calls_nothing_and_ends(tmp_path):
    """Properties are not read, circles are left, and large datasets are not looked through."""

    class Careful(Plain):
        def __init__(self):
            self.itself = self
            self.many = [object() for _ in range(100_000)]
            self.deep = [[[[[[[[[[random.Random(1)]]]]]]]]]]
            self.wide = {n: {m: [m] for m in range(60)} for n in range(60)}

        @property
        def rng(self):
            raise AssertionError("a property was read")

        def __getattr__(self, name):
            raise AssertionError(name)

    held = LoaderState(torch, DataLoader(Careful(), BATCH))
    assert held.get_all_states() == {}
    assert len(held._walk()._seen) <= MAX_OBJECTS


# --- workers that live on ------------------------------------------------------------------------------------------------


def read_in_parts(folder, at):
    """Passes that are left after five batches of eight; the workers live on, and finish what they were asked for."""
    torch.manual_seed(1)
    loader = DataLoader(RngParity(random.random), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    with guard(folder=folder, model=nn.Linear(1, 1), max_lost_work=0.0) as run:
        seen = run.state.setdefault("seen", [])
        for _ in run.epochs(4):
            for n, batch in enumerate(run.batches(loader), len(seen) % 5):
                run._snapshots.flush()
                at("batch", len(seen))
                seen.append(batch.tolist())
                if n == 4:
                    break
    return json.dumps(seen)


@pytest.mark.parametrize("dies", [4, 5, 6, 7, 10, 12])
def test_a_pass_that_was_left_does_not_change_what_workers_that_live_on_draw(tmp_path, dies):
    ends_the_same(tmp_path, read_in_parts, dies)


def test_workers_that_live_on_serve_a_loop_without_guard_too(tmp_path):
    """Batches come as they are: it is the same loader, read after a pass of guard's."""

    def life(folder, at):
        loader = DataLoader(TensorDataset(torch.arange(8.0)), 4, num_workers=1, persistent_workers=True)
        with guard(folder=folder, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
            for _ in run.epochs(2):
                guarded = [x.tolist() for (x,) in run.batches(loader)]
                assert [x.tolist() for (x,) in loader] == guarded
        return "read"

    assert Lives(tmp_path / "s", training=life).to_the_end([]) == "read"


def test_workers_that_were_there_before_do_not_stop_a_resume(tmp_path):
    """The program has a look at its first batch before it begins."""

    def looked_at():
        loader = DataLoader(Plain(), BATCH, num_workers=1, persistent_workers=True)
        next(iter(loader))
        return loader

    said = notes(tmp_path, looked_at)
    assert ["were started before" in line for line in said] == [True]


# --- another loader than it was ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "seen_twice"),
    [((4, 0), (8, 0), 4), ((4, 0), (3, 0), 0), ((4, 2), (4, 1), 0), ((4, 0), (4, 2), 0)],
)
def test_another_batch_size_or_number_of_workers_is_said_and_loses_no_sample(tmp_path, capsys, before, now, seen_twice):
    seen = []
    for size, workers in (before, now):
        torch.manual_seed(2)
        loader = DataLoader(TensorDataset(torch.arange(24)), size, shuffle=True, num_workers=workers)
        with contextlib.suppress(Stop), guard(folder=tmp_path, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
            for _ in run.epochs(1):
                for (x,) in run.batches(loader):
                    if run.restored is None and run._position == 4:
                        raise Stop
                    seen.extend(x.tolist())
                    run.snapshot()
    assert set(seen) == set(range(24))
    assert len(seen) == 24 + seen_twice
    name = "batch size" if before[0] != now[0] else "workers"
    value = 0 if before[0] != now[0] else 1
    assert f"{name}: {before[value]} then, {now[value]} now" in capsys.readouterr().err


def test_another_batch_size_in_the_next_epoch_is_said(tmp_path, capsys):
    for size in (4, 8):
        loader = DataLoader(TensorDataset(torch.arange(24)), size)
        with contextlib.suppress(Stop), guard(folder=tmp_path, model=nn.Linear(1, 1), max_lost_work=NEVER) as run:
            for epoch in run.epochs(2):
                if epoch == 1 and run.restored is None:
                    raise Stop
                for _ in run.batches(loader):
                    pass
                run.snapshot()
    assert "batch size: 4 then, 8 now" in capsys.readouterr().err


def test_the_same_loader_is_not_spoken_of(tmp_path):
    assert notes(tmp_path, lambda: DataLoader(Plain(), BATCH, shuffle=True, num_workers=1)) == []


# --- where tensors are made ----------------------------------------------------------------------------------------------


def test_a_default_device_of_the_program_s_does_not_tear_snapshots(tmp_path, capsys):
    """With `torch.set_default_device` new tensors are made elsewhere; those of snapshots are not."""

    class Drawn:
        def __init__(self):
            self.generator = torch.Generator(device="cpu").manual_seed(3)
            self.seen = 0

        def __iter__(self):
            for _ in range(8):
                self.seen += 1
                yield self.seen, torch.rand(1, device="cpu", generator=self.generator).item() + random.random()

    def life(folder, *, stop):
        random.seed(1)
        model = nn.Linear(1, 1)
        torch.set_default_device("meta")
        try:
            with contextlib.suppress(Stop), guard(folder=folder, model=model, max_lost_work=NEVER) as run:
                seen = run.state.setdefault("seen", [])
                for _ in run.epochs(2):
                    for thing in run.batches(Drawn()):
                        seen.append([*thing, random.random()])
                        run.snapshot()
                        if stop and len(seen) == 11:
                            raise Stop
        finally:
            torch.set_default_device("cpu")
        return run.restored, run.state["seen"]

    _, whole = life(tmp_path / "whole", stop=False)
    life(tmp_path / "killed", stop=True)
    assert life(tmp_path / "killed", stop=False) == (10, whole)
    assert "torn" not in capsys.readouterr().err


# --- snapshots of the layout before --------------------------------------------------------------------------------------


def test_a_snapshot_of_the_layout_before_goes_on(tmp_path):
    """It has the generators of the loader and its sampler, by their order, and nothing else of a loader."""

    def loader():
        return DataLoader(Plain(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))

    def moment(one):
        return {"rng": get_rng_states(torch), "generators": [one.generator.get_state()]}

    whole, batches, start = loader(), [], moment(loader())
    iterator = iter(whole)
    batches.extend(next(iterator).tolist() for _ in range(3))
    kept = {"batches": 3, "start": start, "now": moment(whole), "reused": False}
    batches.extend(batch.tolist() for batch in iterator)
    epoch_after = [batch.tolist() for batch in whole]

    again = Loaders(torch)
    again.load_state({"generators": {0: [moment(whole)["generators"][0]]}, "workers": {}})
    again.reach_resume_point()
    one = loader()
    resumed = again.start_pass(again.register(0, one, restore=False), one, kept)
    assert [batch.tolist() for batch in resumed] == batches[3:]
    assert [batch.tolist() for batch in one] == epoch_after
    assert resumed.why_not_exact() is None


def test_a_boundary_of_the_layout_before_goes_on():
    one = DataLoader(Plain(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    there = torch.Generator().manual_seed(6).get_state()
    loaders = Loaders(torch)
    loaders.load_state({"generators": {0: [there]}, "workers": {}})
    loaders.reach_resume_point()
    loaders.register(0, one)
    assert torch.equal(one.generator.get_state(), there)
