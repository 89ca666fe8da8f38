"""A training loop that really uses every operator with a known device bug.

It learns to classify a noisy image and a few tokens into four classes: an embedding, a convolution with a non-contiguous
weight, attention, pooling, a very long linear layer, masks, sorting, counting, and bookkeeping with scalars.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast.simulator.fault_log import set_step

LONG = 33000
"""The number of terms in one sum: more than 32767."""
CLASSES = 4
BATCH = 6
WORDS = 5


class Mixture(nn.Module):  # type: ignore[misc] # torch's types are not read
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 16)
        self.image = nn.Conv2d(3, 8, 3, padding=1)
        self.finer = nn.Conv2d(8, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        self.long = nn.Linear(LONG, 2)
        self.layers = nn.ModuleList([nn.Linear(26, 64), nn.Linear(64, CLASSES)])
        self.scale = nn.Parameter(torch.ones(8))
        # Non-contiguous, as in models that were converted, pruned or transposed.
        self.image.weight = nn.Parameter(
            self.image.weight.detach().permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
        )

    def forward(self, tokens: torch.Tensor, images: torch.Tensor, signal: torch.Tensor) -> Any:
        features = functional.silu(self.norm(self.image(images)))
        features = functional.max_pool2d(features, 2)
        features = functional.interpolate(self.finer(features), scale_factor=2.0)
        features = features.mean((2, 3)) * self.scale
        words = self.words(tokens)
        attention = torch.softmax(self.query(words) @ self.key(words).transpose(1, 2) / 4.0, -1)
        attended = (attention @ words).mean(1)
        mixed = torch.cat([features, attended, functional.relu(self.long(signal))], 1)
        return self.layers[1](functional.gelu(self.layers[0](mixed))), words


class Training:
    def __init__(self, device: str = "sim", optimizer: str = "AdamW", *, steps: int = 3, dtype: Any = None) -> None:
        self.device = device
        self.steps = steps
        self.losses: list[float] = []
        self._optimizer = optimizer
        self._dtype = dtype

    def run(self) -> list[float]:
        torch.manual_seed(0)
        model = Mixture().to(self.device)
        options = {"lr": 0.01, "weight_decay": 0.01} if self._optimizer != "SGD" else {"lr": 0.01, "momentum": 0.9}
        optimizer = getattr(torch.optim, self._optimizer)(model.parameters(), **options)
        for step in range(1, self.steps + 1):
            set_step(step)
            tokens = torch.randint(0, 12, (BATCH, WORDS))
            images, signal = torch.randn(BATCH, 3, 8, 8), torch.randn(BATCH, LONG) / 50.0
            target = tokens[:, 0] % CLASSES
            batch = [value.to(self.device, non_blocking=True) for value in (tokens, images, signal, target)]
            optimizer.zero_grad()
            parts = self._compute_losses(model, *batch)
            parts.sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            self.losses.append(parts.detach().sum().item())
        return self.losses

    def _compute_losses(
        self, model: nn.Module, tokens: torch.Tensor, images: torch.Tensor, signal: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        scores, words = model(tokens, images, signal)
        parts = torch.zeros(3, device=self.device)
        parts[0] = functional.cross_entropy(scores, target)
        parts[1] = self._masked_loss(words, tokens)
        parts[2] = self._ranking_loss(scores) + self._bookkeeping_loss(tokens, scores)
        return parts

    def _masked_loss(self, words: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Use boolean masks, one of them written through a view, and repeated indices, whose gradients add up."""
        mask = torch.zeros(BATCH, WORDS + 2, dtype=torch.bool, device=self.device)
        mask[1:].fill_(True)
        mask[:, WORDS:] = False
        chosen = words[mask[:, :WORDS]]
        even = words.detach()[(tokens % 2 == 0) & mask[:, :WORDS]]
        repeated = words[:, 0][torch.zeros(4, dtype=torch.long, device=self.device)]
        spread = torch.zeros(BATCH, 16, device=self.device).scatter_add(
            0, tokens[:, :1].expand(-1, 16) % BATCH, words[:, 0]
        )
        return (
            chosen.square().mean()
            + even.square().sum() / 100.0
            + repeated.square().mean()
            + spread.square().mean() / 10.0
        )

    def _ranking_loss(self, scores: torch.Tensor) -> torch.Tensor:
        """Use the best scores in each column and in each row."""
        order = scores.argsort(dim=0)
        best, _ = scores.topk(2, dim=1)
        return (scores.gather(0, order)[0] - scores.gather(0, order)[-1]).mean() / 10.0 - best.mean() / 100.0

    def _bookkeeping_loss(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Use counts, timestamps in nanoseconds, and accuracy with missing scores."""
        _, counts = tokens.flatten().unique(return_counts=True)
        timestamps = (tokens[:, 0] + 1) * 1_000_000_000
        late = timestamps.cumsum(0) > timestamps.sum() // 2
        missing = scores.detach().clone()
        missing[0, 2] = float("nan")
        predicted = missing.argmax(1)
        weight = counts.max() / counts.sum() + late.float().mean() + (predicted == 2).float().mean()
        return scores.std() * weight / 100.0
