"""A small data-parallel training of two ranks under `holdfast.guard`, and ways to kill it.

Each rank reads its own share of the samples, draws its own random numbers, drops out, keeps its own running averages, and
accumulates over two batches; only gradients are shared. Run as a program it is one rank under torchrun.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import holdfast
from holdfast.probe.holdfast_probe.snapshots.fs import Files

if TYPE_CHECKING:
    from collections.abc import Callable

WORLD = 2
SAMPLES, BATCH, EPOCHS = 64, 4, 5
BATCHES = SAMPLES // WORLD // BATCH  # of one rank in an epoch; 16, where the first snapshot is, is the end of one

MAX_SECONDS = 30.0
"""For what comes at once, or never."""


def train(
    rank: int,
    meeting: str,
    folder: Path | None,
    *,
    asks_every: int = 0,
    at: Callable[[str, int], None] = lambda *_: None,
    **options: Any,
) -> dict[str, Any]:
    """One life of one rank: what came out, and the step that it went on from."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    model = nn.parallel.DistributedDataParallel(network)
    torch.manual_seed(10 + rank)
    random.seed(20 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    samples = torch.linspace(-1, 1, SAMPLES * 6).view(SAMPLES, 6)
    sampler = torch.utils.data.DistributedSampler(samples, WORLD, rank, shuffle=True, seed=7)
    loader = torch.utils.data.DataLoader(samples, batch_size=BATCH, sampler=sampler)
    with holdfast.guard(folder=folder, model=model, optimizer=optimizer, **options) as run:
        at("entered", 0)
        seen = run.state.setdefault("seen", [])
        for epoch in run.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for x in run.batches(loader):
                seen.append(round(float(x.sum()), 3))
                whole = len(seen) % 2 == 0
                loss = (model(x * random.uniform(0.9, 1.1)) - x.sum(1, keepdim=True)).square().mean()
                if whole:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                else:
                    with model.no_sync():
                        loss.backward()
                if asks_every and len(seen) % asks_every == 0:
                    run.snapshot()
                at("after batch", len(seen))
        at("last batch", 0)
    at("left", rank)
    state = [value for part in (model, optimizer) for value in _tensors(part.state_dict())]
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in state))
    digest.update(json.dumps([seen, random.random(), torch.rand(1).item()]).encode())
    return {"digest": digest.hexdigest(), "restored": run.restored}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in inner for tensor in _tensors(item)]


def part(rank: int) -> None:
    """A rank that leaves while the other still talks to it aborts that one: they part through the store, which outlives both."""
    store = torch.distributed.distributed_c10d._get_default_store()
    store.set(f"done-{rank}", "1")
    store.wait([f"done-{other}" for other in range(WORLD)])


@dataclass(frozen=True)
class Death:
    """Where a rank is killed; the other is then ended as a launcher does. First it waits for a file, beside the snapshots or there."""

    rank: int
    where: str
    number: int
    once_there: str = ""


class Ranks:
    """Lets both live and die until they come to their end. Each life is two forks."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self._options = options
        self._count = 0

    def live(self, death: Death | None = None) -> list[dict[str, Any]] | None:
        """What each rank came to; None where they died as they were to."""
        self._count += 1
        outs = [self._folder.parent / f"out-{self._folder.name}-{self._count}-{rank}" for rank in range(WORLD)]
        pids = [self._forked(rank, death, out) for rank, out in enumerate(outs)]
        try:
            for _ in pids:
                pid, status = _wait_for_one(pids)
                if death is not None and pid == pids[death.rank] and os.WIFSIGNALED(status):
                    assert os.WTERMSIG(status) == signal.SIGKILL
                    return None
                said = [out.read_text() if out.exists() else "nothing" for out in outs]
                assert status == 0, "\n".join(said)
        finally:
            for pid in pids:
                _end(pid)
        assert death is None, f"they came to their end before {death}"
        return [json.loads(out.read_text()) for out in outs]

    def _forked(self, rank: int, death: Death | None, out: Path) -> int:
        pid = os.fork()
        if pid:
            return pid
        meeting = f"file://{self._folder.parent}/meeting-{self._folder.name}-{self._count}"
        try:
            at = killer(death if death is not None and death.rank == rank else None, self._folder.parent)
            _tell_of_commits(at)
            out.write_text(json.dumps(train(rank, meeting, self._folder, at=at, **self._options)))
            part(rank)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - what a fork raises is told by its parent
            out.write_text(traceback.format_exc())
            os._exit(1)


def killer(death: Death | None, folder: Path) -> Callable[[str, int], None]:
    def at(where: str, number: int) -> None:
        if where == "left":
            (folder / f"left-{number}").touch()
        if death is not None and (where, number) == (death.where, death.number):
            give_up = time.monotonic() + MAX_SECONDS
            while death.once_there and not list(folder.glob(death.once_there)):
                assert time.monotonic() < give_up, f"there is no {death.once_there}"
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def _tell_of_commits(at: Callable[[str, int], None]) -> None:
    """The moment at which all is on the disk but the name that makes it count."""
    rename = Files.rename

    def told(files: Files, path: str, to: str) -> None:
        if to.endswith(".commit"):
            at("commit", int(Path(to).name.split(".")[0]))
        rename(files, path, to)

    Files.rename = told  # type: ignore[method-assign]


def _wait_for_one(pids: list[int]) -> tuple[int, int]:
    while True:
        for pid in pids:
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # it was waited for already
                continue
            if found:
                return found, status
        time.sleep(0.001)


def _end(pid: int) -> None:
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:  # it was waited for already
        pass


if __name__ == "__main__":
    number = int(os.environ["RANK"])
    first = os.environ.get("HOLDFAST_ATTEMPT", "1") == "1"
    death = Death(1, "after batch", 21, once_there="*/*.commit") if first and number == 1 else None
    kill = killer(death, Path(os.environ["HOLDFAST_SNAPSHOTS"]).parent)
    found = train(number, "env://", None, at=kill)
    if number == 0:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    part(number)
    # Gloo's threads may still hold tensors while the interpreter is taken down, which aborts it now and then.
    atexit._run_exitfuncs()
    os._exit(0)
