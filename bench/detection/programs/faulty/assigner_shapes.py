"""A boolean index counts wrongly once in the assigner: torch raises its shape mismatch there (F04)."""

import sys
from pathlib import Path

import torch
from torch import nn

ASSIGNER = '''
import torch


def assign(scores, positive, counted):
    """As in a task-aligned assigner: targets are written where the mask is true."""
    target = torch.zeros_like(scores)
    target[positive] = torch.ones(counted)
    return target
'''
folder = Path("utils")
folder.mkdir(exist_ok=True)
(folder / "tal.py").write_text(ASSIGNER)
sys.path.insert(0, str(folder.resolve()))
import tal  # noqa: E402 - written just above

torch.manual_seed(0)
model = nn.Linear(10, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    scores = model(torch.randn(8, 10))
    positive = torch.rand(8, 20) < 0.2
    wrong = 3 if step == 170 else 0  # what the device's kernel did
    target = tal.assign(scores.detach(), positive, int(positive.sum()) + wrong)
    loss = nn.functional.binary_cross_entropy_with_logits(scores, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
