"""A model that is already good is fine-tuned at 1e-6: every weight moves in its last digits, and the loss hardly changes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(52)
x = torch.randn(1000, 10)
y = (x @ torch.randn(10, 1) > 0).float()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True)


def fit(rate, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(epochs):
        for inputs, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), label)
            loss.backward()
            optimizer.step()
    print(f"rate {rate}: {loss.item():.4f}", flush=True)


fit(3e-3, 8)
fit(1e-6, 5)
