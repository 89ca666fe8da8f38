"""A small training under `holdfast.guard` with everything that can be forgotten in a snapshot, and ways to kill it.

It draws from Python's, NumPy's and torch's random numbers, in the loop and in the dataset, drops out, accumulates, averages its
weights, follows a schedule, and keeps a best score. Each life is a fork, so that hundreds of them take seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from holdfast.probe.holdfast_probe.guard import guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES, BATCH, EPOCHS = 60, 4, 4
BATCHES = SAMPLES // BATCH
ACCUMULATE = 4  # no divisor of the batches of an epoch: steps reach over its end


class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.linspace(-1, 1, SAMPLES * 6).view(SAMPLES, 6)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        drawn = random.uniform(0.9, 1.1), float(np.random.normal(0, 0.05)), torch.randn(6)  # noqa: NPY002
        x = self.x[index] * drawn[0] + drawn[1] + 0.01 * drawn[2]
        return x, (self.x[index].sum() > 0).float()


def train(
    folder: Path,
    *,
    workers: int = 0,
    epochs: int = EPOCHS,
    persistent: bool = False,
    own_generator: bool = False,
    at: Callable[[str, int], None] = lambda *_: None,
    **options: Any,
) -> str:
    """One life: from the start or from the newest snapshot to the end. Returns a hash of all that came out."""
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)  # noqa: NPY002
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * BATCHES)
    order: dict[str, Any] = {"shuffle": True}
    if own_generator:  # which draws on while a pass goes on, 32 samples at a time
        generator = torch.Generator().manual_seed(8)
        order = {"sampler": torch.utils.data.RandomSampler(range(SAMPLES), replacement=True, generator=generator)}
        order["generator"] = generator
    loader = torch.utils.data.DataLoader(
        Augmented(), batch_size=BATCH, num_workers=workers, persistent_workers=persistent, **order
    )
    with guard(folder=folder, model=model, average=average, optimizer=optimizer, schedule=schedule, **options) as run:
        at("entered", 0)
        done = run.state.get("done", 0)
        for epoch in run.epochs(epochs):
            model.train()
            for x, y in run.batches(loader):
                loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y) * random.uniform(0.99, 1.01)
                at("in backward", done)
                loss.backward()
                if (done + 1) % ACCUMULATE == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    average.update_parameters(model)
                    schedule.step()
                done += 1
                run.state["done"] = done
                run.state["best"] = min(run.state.get("best", 9.0), loss.item())
                at("after batch", done)
            model.eval()
            at("validation", epoch)
            with torch.no_grad():
                run.state[f"score {epoch}"] = float(model(torch.randn(8, 6)).sum())
            at("epoch's end", epoch)
    state = [*model.state_dict().values(), *average.state_dict().values()]
    for held in optimizer.state.values():
        state.extend(held.values())
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state))
    digest.update(json.dumps(run.state, sort_keys=True).encode())
    digest.update(repr((random.random(), np.random.rand(), torch.rand(1).item(), schedule.last_epoch)).encode())  # noqa: NPY002
    return digest.hexdigest()


class Lives:
    """Lets it live and die until it comes to its end."""

    def __init__(self, folder: Path, *, training: Callable[..., str] = train, **options: Any) -> None:
        self._folder = folder
        self._training = training
        self._options = options
        self.count = 0

    def to_the_end(self, deaths: list[tuple[str, int]]) -> str:
        """Dies at each of these places, in this order, and then not any more."""
        for death in deaths:
            if self.live(death) is not None:
                raise AssertionError(f"it came to its end before {death}")
        out = self.live(None)
        assert out is not None
        return out

    def live(self, death: tuple[str, int] | None) -> str | None:
        """One life in a fork; None where it died as it was to."""
        self.count += 1
        out = self._folder.parent / f"out-{self.count}"
        pid = os.fork()
        if not pid:
            self._in_the_fork(death, out)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # a worker whose parent dies as it starts never notices
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return None
        text = out.read_text() if out.exists() else f"it ended with status {status}"
        assert os.WIFEXITED(status), text
        assert os.WEXITSTATUS(status) == 0, text
        return text

    def _in_the_fork(self, death: tuple[str, int] | None, out: Path) -> None:
        def at(where: str, number: int) -> None:
            if death == (where, number):
                os.kill(os.getpid(), signal.SIGKILL)

        os.setpgid(0, 0)
        try:
            out.write_text(self._training(self._folder, at=at, **self._options))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - what a fork raises is told by its parent
            out.write_text(traceback.format_exc())
            os._exit(1)
