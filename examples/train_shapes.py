"""A small but real training: a convolutional network learns to tell circles, squares and triangles apart.

It knows nothing of Holdfast. It saves a checkpoint after every epoch and can go on from one.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_shapes(count: int, size: int = 32) -> TensorDataset:
    """Noisy pictures of one shape each, drawn from its equation."""
    generator = torch.Generator().manual_seed(7)
    label = torch.randint(3, (count,), generator=generator)
    centre = torch.rand(count, 2, 1, 1, generator=generator) * 12 + 10
    radius = torch.rand(count, 1, 1, generator=generator) * 4 + 4
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dx, dy = x - centre[:, 0], y - centre[:, 1]
    circle = dx**2 + dy**2 < radius**2
    square = torch.maximum(dx.abs(), dy.abs()) < radius * 0.85
    triangle = (dy < radius * 0.7) & (dy > dx.abs() * 1.7 - radius)
    shape = torch.stack([circle, square, triangle], 1)[torch.arange(count), label].float()
    noise = torch.randn(count, size, size, generator=generator) * 0.3
    return TensorDataset((shape + noise).unsqueeze(1), label)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=8)
    arguments.add_argument("--save", type=Path, default=Path("shapes.pt"))
    arguments.add_argument("--resume", type=Path)
    arguments.add_argument("--die-at-step", type=int, help="kill this process there, on the first attempt only")
    options = arguments.parse_args()

    torch.manual_seed(0)
    train = DataLoader(make_shapes(2400), batch_size=32, shuffle=True)
    validation = DataLoader(make_shapes(600), batch_size=200)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    epoch = step = 0
    if options.resume:
        state = torch.load(options.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch, step = state["epoch"], state["step"]
        print(f"going on from {options.resume}, step {step}", flush=True)

    for epoch in range(epoch, options.epochs):  # noqa: B020 - goes on where it was
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == options.die_at_step and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1, "step": step}
        torch.save(state, options.save)
        print(
            f"epoch {epoch + 1}/{options.epochs}: loss {loss.item():.3f}, accuracy {evaluate(model, validation):.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
