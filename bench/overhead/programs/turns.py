# ruff: noqa: SLF001 - it removes the probe from torch and restores it
"""A training that alternates between monitored and bare blocks of steps, within one process under `holdfast run`.

On a shared machine, two processes differ in speed by several percent even if both are bare. Blocks of a quarter of a second in one
process do not. For bare blocks, all hooks and wrappers of the probe are removed from torch; for monitored blocks they are restored.
BENCH_CONFIG contains the configuration as JSON: net, optimizer, target_ms, quads, guard, out.
"""

import collections
import json
import os
import statistics
import sys
import time

import models
import torch
from torch.optim import optimizer as optimizer_module
from torch.utils.data import dataloader

import holdfast

BLOCK_SECONDS = 0.25
WARMUP, WARMUP_SECONDS = 1100, 15.0
"""Each of the first thousand steps gets its own line in the record, which is not typical of a long training."""
MIN_WARMUP = 40
MIN_STEPS = 4
BATCHES, MAX_SAMPLES = 128, 32768
"""Per epoch. With few batches of a millisecond each, the bench would measure the recording of epoch ends."""


class ProbeSwitch:
    """Removes the probe from torch and restores it."""

    def __init__(self):
        self.probe = sys.modules["holdfast_probe.probe"]._probe
        self._places = [
            (torch.autograd, "backward"),
            (torch.autograd, "grad"),
            (dataloader._BaseDataLoaderIter, "__next__"),
        ]
        self._wrapped = [getattr(owner, name) for owner, name in self._places]
        self._hooks = [optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks]
        assert all(hasattr(function, "__wrapped__") for function in self._wrapped)
        assert all(self._hooks)

    def on(self):
        self._set(self._wrapped, self._hooks)
        now = time.monotonic()  # otherwise the bare block would count as one long step
        self.probe.steps.ended_at = self.probe.fast_path._ended_at = now

    def off(self):
        none = [collections.OrderedDict(), collections.OrderedDict()]
        self._set([function.__wrapped__ for function in self._wrapped], none)

    def _set(self, functions, hooks):
        for (owner, name), function in zip(self._places, functions, strict=True):
            setattr(owner, name, function)
        optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks = hooks


class Training:
    def __init__(self, config, batch):
        self._model = models.build(config["net"])
        self._optimizer = models.build_optimizer(config["optimizer"], self._model.parameters())
        data = models.make_data(config["net"], max(1024, min(BATCHES * batch, MAX_SAMPLES)))
        self._loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
        self._criterion = torch.nn.CrossEntropyLoss()
        self._plain = self._endless()
        self._guarded = self._endless_under_guard() if config.get("guard") else None

    def _endless(self):
        while True:
            yield from self._loader

    def _endless_under_guard(self):
        with holdfast.guard(model=self._model, optimizer=self._optimizer) as run:
            for _ in run.epochs(sys.maxsize):
                yield from run.batches(self._loader)

    def block(self, steps, *, watched=False):
        """Train a block of steps. Return the milliseconds per step."""
        batches = self._guarded if watched and self._guarded is not None else self._plain
        began = time.perf_counter()
        for _ in range(steps):
            inputs, labels = next(batches)
            self._optimizer.zero_grad()
            loss = self._criterion(self._model(inputs), labels)
            loss.backward()
            self._optimizer.step()
        return 1e3 * (time.perf_counter() - began) / steps


def calibrate(config):
    """Return the batch size at which a bare step takes the intended time, by the fastest quarter of many blocks."""
    batch, target = config["first_batch"], config["target_ms"]
    for _ in range(10):
        training = Training(config, batch)
        training.block(5)
        took = statistics.quantiles((training.block(max(2, round(100 / target))) for _ in range(16)), n=4)[0]
        if abs(took / target - 1) < 0.05:
            break
        batch = min(4096, max(2, round(batch * (target / took) ** (0.9 if took > target else 0.7))))
    return batch


def main():
    config = json.loads(os.environ["BENCH_CONFIG"])
    torch.manual_seed(0)
    Training(config, 4).block(1)  # activates the probe
    switch = ProbeSwitch()
    switch.off()
    batch = calibrate(config)
    torch.manual_seed(0)
    training = Training(config, batch)
    switch.on()
    training.block(max(MIN_WARMUP, min(WARMUP, round(1e3 * WARMUP_SECONDS / config["target_ms"]))))
    steps = max(MIN_STEPS, round(1e3 * BLOCK_SECONDS / config["target_ms"]))
    quads = []
    for number in range(config["quads"]):
        quad = {}
        order = ("on", "off", "off again", "on again")
        for turn in order if number % 2 else tuple(reversed(order)):
            watched = turn.startswith("on")
            (switch.on if watched else switch.off)()
            quad[turn] = training.block(steps, watched=watched)
        quads.append(quad)
        if number % 10 == 0:
            print(f"quad {number} of {config['quads']}", flush=True)
    switch.on()
    training.block(2)
    with open(config["out"], "w") as out:  # noqa: PTH123 as in a plain script
        json.dump({"batch": batch, "steps_a_block": steps, "quads": quads, "steps": switch.probe.step}, out)


main()
