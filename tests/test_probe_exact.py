"""The probe changes no number: final weights are the same bits with and without it."""

import sys

import pytest
from probe_harness import run, run_bare

from holdfast.schema import events

TRAININGS = """
import hashlib, io, random, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

def fresh(seed=0):
    random.seed(seed)
    torch.manual_seed(seed)

def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    def forward(self, x):
        return self.body(x[:, None, :, None].expand(-1, 1, 6, 6).contiguous())

class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 1)
    def forward(self, x):
        return self.head(self.gru(x.reshape(-1, 3, 2))[0][:, -1])

class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.head, self.reentrant = mlp(), nn.Linear(1, 1), reentrant
    def forward(self, x):
        return self.head(checkpoint(self.inner, x.requires_grad_(), use_reentrant=self.reentrant))

def train(model, make, steps=12, accumulate=1, autocast=False, scaler=None, closure=False, clip=False):
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=1000, cycle_momentum=False)
    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8, shuffle=True)
    batches = []
    while len(batches) < steps * accumulate:
        batches.extend(loader)
    for step in range(steps):
        optimizer.zero_grad()
        micro = batches[step * accumulate : (step + 1) * accumulate]
        def backward():
            for x, y in micro:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = nn.functional.mse_loss(model(x.clone()), y) / accumulate
                (loss if scaler is None else scaler.scale(loss)).backward()
            return loss
        if closure:
            def evaluate():
                optimizer.zero_grad()
                return backward()
            optimizer.step(evaluate)
        else:
            backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        schedule.step()
    return model

def say(name, model):
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.detach().contiguous().numpy().tobytes())
    digest.update(repr((random.random(), torch.rand(1).item())).encode())
    print(name, digest.hexdigest())
"""

EAGER = (
    TRAININGS
    + """
sgd = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)
adamw = lambda p: torch.optim.AdamW(p, lr=0.01)
fused = lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)
lbfgs = lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=4)
for model in (mlp, Cnn, Gru):
    for name, optimizer in (("sgd", sgd), ("adamw", adamw), ("fused", fused)):
        fresh()
        say(model.__name__ + " " + name, train(model(), optimizer, clip=True))
    fresh()
    say(model.__name__ + " lbfgs", train(model(), lbfgs, steps=4, closure=True))
fresh(); say("accumulation", train(mlp(), adamw, accumulate=3))
fresh(); say("autocast", train(mlp(), adamw, autocast=True))
fresh(); say("scaler", train(mlp(), sgd, scaler=torch.amp.GradScaler("cpu", init_scale=256.0)))
fresh(); say("scaler fused", train(mlp(), fused, scaler=torch.amp.GradScaler("cpu", init_scale=256.0)))
fresh(); say("reentrant", train(Checkpointed(True), sgd))
fresh(); say("not reentrant", train(Checkpointed(False), sgd))
"""
)


def test_eager_trainings_are_bit_identical(tmp_path):
    """MLP, CNN and GRU; SGD, AdamW fused and not, LBFGS; accumulation, autocast, scaler, both kinds of checkpointing:
    the same weights and the same random numbers afterwards."""
    probed = run(tmp_path, EAGER)
    assert probed.out == run_bare(tmp_path, EAGER)
    assert probed.out.count("\n") == 18
    assert probed.beats[0].step > 100


COMPILED = (
    TRAININGS
    + """
import torch._dynamo
from torch._dynamo.utils import counters
from torch._dynamo.testing import CompileCounterWithBackend

def counted(title, backend, function):
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    fresh()
    say(title + " " + backend, function(counter))
    breaks = sum(counters["graph_break"].values())
    print(title, backend, "frames", counter.frame_count, "ops", counter.op_count, "breaks", breaks,
          "graphs", counters["stats"]["unique_graphs"])

sgd = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)
for backend in ("eager", "aot_eager"):
    def outside(counter):
        model = mlp()
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        train(compiled, sgd)
        return model
    counted("model", backend, outside)

    def made_inside(counter):
        class Inline(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = mlp()
            def forward(self, x):
                return nn.Softplus()(self.inner(x))
        model = Inline()
        train(torch.compile(model, backend=counter, fullgraph=True), sgd)
        return model
    counted("module made in forward", backend, made_inside)

    def whole_step(counter):
        model, x, y = mlp(), torch.randn(8, 6), torch.randn(8, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss
        compiled = torch.compile(step, backend=counter)
        for _ in range(5):
            compiled(x, y)
        return model
    counted("whole step", backend, whole_step)

    def optimizer_alone(counter):
        model, x = mlp(), torch.randn(8, 6)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        compiled = torch.compile(lambda: optimizer.step(), backend=counter, fullgraph=False)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            compiled()
        return model
    counted("optimizer", backend, optimizer_alone)

    def clip_in_graph(counter):
        model, x = mlp(), torch.randn(8, 6)
        model(x).sum().backward()
        compiled = torch.compile(lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5), backend=counter, fullgraph=True)
        compiled()
        return model
    counted("clip", backend, clip_in_graph)
"""
)


def test_compiled_trainings_keep_their_graphs_and_their_bits(tmp_path):
    """torch.compile of the model alone (fullgraph), of a whole step, of the optimizer's step and of clipping: the same
    number of graphs, operators and breaks as without the probe, and the same weights."""
    probed = run(tmp_path, COMPILED)
    bare = run_bare(tmp_path, COMPILED)
    assert probed.out.splitlines() == bare.splitlines()
    assert "model eager frames 1 " in bare
    assert probed.beats[0].step >= 24


def test_a_step_that_is_compiled_whole_is_counted_by_its_backwards(tmp_path):
    """With the optimizer's step inside a graph its hooks are not called: that shows after a while, and backwards count."""
    probed = run(
        tmp_path,
        """
        import torch
        model, x = torch.nn.Linear(3, 1), torch.randn(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        compiled = torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=False)
        for _ in range(100):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            compiled()
        """,
    )
    assert probed.coverage.step_source in ("backward", "optimizer")
    assert probed.beats[0].step == 100


def test_a_step_that_is_compiled_later_is_counted_by_its_backwards(tmp_path):
    """Steps seen at first, then compiled into a graph: the weights still change with every backward, so those are steps."""
    probed = run(
        tmp_path,
        """
        import torch
        model, x = torch.nn.Linear(3, 1), torch.randn(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        step = optimizer.step
        for number in range(110):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if number == 10:
                step = torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=False)
            step()
        """,
    )
    assert probed.beats[0].step == 110


DDP = """
import atexit, os, sys, torch, torch.distributed as dist, hashlib
from torch import nn
def train(rank, world):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=os.environ["MEETING"])
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    if rank == 0:
        print(hashlib.sha256(weights).hexdigest(), flush=True)
    # A rank that leaves while the other still talks to it aborts that one, even inside a last barrier: they part through
    # the store, which outlives both.
    store = dist.distributed_c10d._get_default_store()
    store.set("done-%d" % rank, "1")
    store.wait(["done-0", "done-1"])
    # Gloo's threads may still hold tensors while the interpreter is taken down, which aborts it now and then (bare too).
    atexit._run_exitfuncs()
    os._exit(0)
if __name__ == "__main__":
    import tempfile
    if "LOCAL_RANK" in os.environ:
        os.environ["MEETING"] = "env://"
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ["MEETING"] = "file://" + tempfile.mktemp()
        torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("command", [None, TORCHRUN], ids=["spawn", "torchrun"])
def test_two_ranks_are_bit_identical_and_each_speaks_for_itself(tmp_path, command):
    """Data-parallel over gloo, spawned or under torchrun: the same weights, a file and a heartbeat slot for each rank."""
    (tmp_path / "bare").mkdir()
    probed = run(tmp_path, DDP, command=command)
    assert probed.out == run_bare(tmp_path / "bare", DDP, command=command)
    assert probed.files == ["rank-0.jsonl", "rank-1.jsonl"]
    for rank in (0, 1):
        attached = probed.of(events.ProbeAttached, rank)[0]
        assert (attached.rank, attached.world_size, attached.primary) == (rank, 2, True)
        assert [line.step for line in probed.of(events.Step, rank)] == [1, 2, 3, 4, 5]
        assert probed.beats[rank].step == 5
        assert probed.of(events.ProcessExiting, rank)
