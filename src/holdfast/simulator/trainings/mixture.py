"""A plain loop that uses, in earnest, each operator that devices are known to have got wrong.

It learns to tell which of four words a noisy image and a few tokens belong to: an embedding, a convolution whose weight
is not contiguous, attention, pooling, a very long linear layer, masks, sorting, counting, and bookkeeping with scalars.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast.simulator.fault_log import at_step

LONG = 33000
"""Terms of one sum: more than 32767."""
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
        # As models that were converted, pruned or transposed have them.
        self.image.weight = nn.Parameter(
            self.image.weight.detach().permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
        )

    def forward(self, tokens: torch.Tensor, images: torch.Tensor, signal: torch.Tensor) -> Any:
        seen = functional.silu(self.norm(self.image(images)))
        seen = functional.max_pool2d(seen, 2)
        seen = functional.interpolate(self.finer(seen), scale_factor=2.0)
        seen = seen.mean((2, 3)) * self.scale
        words = self.words(tokens)
        attention = torch.softmax(self.query(words) @ self.key(words).transpose(1, 2) / 4.0, -1)
        read = (attention @ words).mean(1)
        mixed = torch.cat([seen, read, functional.relu(self.long(signal))], 1)
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
            at_step(step)
            tokens = torch.randint(0, 12, (BATCH, WORDS))
            images, signal = torch.randn(BATCH, 3, 8, 8), torch.randn(BATCH, LONG) / 50.0
            target = tokens[:, 0] % CLASSES
            batch = [value.to(self.device, non_blocking=True) for value in (tokens, images, signal, target)]
            optimizer.zero_grad()
            parts = self._losses(model, *batch)
            parts.sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            self.losses.append(parts.detach().sum().item())
        return self.losses

    def _losses(
        self, model: nn.Module, tokens: torch.Tensor, images: torch.Tensor, signal: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        scores, words = model(tokens, images, signal)
        parts = torch.zeros(3, device=self.device)
        parts[0] = functional.cross_entropy(scores, target)
        parts[1] = self._of_masked(words, tokens)
        parts[2] = self._of_ranks(scores) + self._bookkeeping(tokens, scores)
        return parts

    def _of_masked(self, words: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Boolean masks, one of them drawn into a part of itself; repeated places, whose gradients add up."""
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

    def _of_ranks(self, scores: torch.Tensor) -> torch.Tensor:
        """What is best, in each column and in each row."""
        order = scores.argsort(dim=0)
        best, _ = scores.topk(2, dim=1)
        return (scores.gather(0, order)[0] - scores.gather(0, order)[-1]).mean() / 10.0 - best.mean() / 100.0

    def _bookkeeping(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Counts, clocks in nanoseconds, accuracy where some scores are missing."""
        _, counts = tokens.flatten().unique(return_counts=True)
        clock = (tokens[:, 0] + 1) * 1_000_000_000
        late = clock.cumsum(0) > clock.sum() // 2
        missing = scores.detach().clone()
        missing[0, 2] = float("nan")
        guessed = missing.argmax(1)
        weight = counts.max() / counts.sum() + late.float().mean() + (guessed == 2).float().mean()
        return scores.std() * weight / 100.0
