"""The validation lacks no_grad: it builds graphs that nothing uses, and discards them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
signal = torch.randn(900, 1, 32)
kind = torch.randint(3, (900,))
signal += torch.sin(torch.arange(32) * (kind[:, None, None] + 1) * 0.4)
train, rest = TensorDataset(signal[:700], kind[:700]), TensorDataset(signal[700:], kind[700:])
model = nn.Sequential(
    nn.Conv1d(1, 12, 5),
    nn.ReLU(),
    nn.Conv1d(12, 12, 5),
    nn.ReLU(),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    nn.Linear(12, 3),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(8):
    for x, y in DataLoader(train, batch_size=28, shuffle=True):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    validation = [criterion(model(x), y) for x, y in DataLoader(rest, batch_size=50)]
    print(f"epoch {epoch}: validation {torch.stack(validation).mean().item():.4f}", flush=True)
    model.train()
