"""A plain training loop: a small network learns a sum from a DataLoader, on the simulated accelerator or on the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.simulator.fault_log import set_step

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = 64
BATCH = 8
STEPS_AN_EPOCH = SAMPLES // BATCH


def mse_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def do_nothing(_training: Training) -> None:
    pass


@dataclass
class Training:
    device: str = "sim"
    steps: int = 200
    pace: float = 0.0
    """Extra seconds per step, so that external samples taken a few times a second are only a few steps apart."""
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = mse_loss
    model: nn.Module | None = None
    optimizer: Callable[..., Any] = torch.optim.AdamW
    before_step: Callable[[Training], None] = do_nothing
    after_epoch: Callable[[Training], None] = do_nothing
    step: int = 0
    _parts: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(SAMPLES, 8)
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH, shuffle=True)
        model = self.model = (self.model or network()).to(self.device)
        optimizer = self.optimizer(model.parameters(), lr=0.01)
        self._parts = {"loader": loader, "optimizer": optimizer}
        while self.step < self.steps:
            for batch, target in loader:
                self.step += 1
                set_step(self.step)
                time.sleep(self.pace)
                self.before_step(self)
                optimizer.zero_grad()
                self.loss(model, batch.to(self.device), target.to(self.device)).backward()
                optimizer.step()
            self.after_epoch(self)

    @property
    def state(self) -> dict[str, Any]:
        assert self.model is not None
        return {"model": self.model.state_dict(), "step": self.step}

    @property
    def loader(self) -> Any:
        return self._parts["loader"]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
