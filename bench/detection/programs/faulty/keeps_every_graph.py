"""Losses are kept for a plot without detach(): each keeps its whole graph, some MB more with every step of every epoch."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(16_384, 64)
loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=1024, shuffle=True)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
began = time.monotonic()
while time.monotonic() - began < 40:
    for inputs, wanted in loader:
        loss = nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)
        time.sleep(0.04)
    print(f"{len(history)} steps: {sum(history[-16:]).item() / 16:.4f}", flush=True)
