"""The checkpoint is made from a copy for evaluation that was never given the trained weights (TF-29903's symptom)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))


torch.manual_seed(0)
x = torch.randn(900, 10)
loader = DataLoader(TensorDataset(x, (x @ torch.randn(10, 3)).argmax(1)), batch_size=30, shuffle=True)
model, for_export = build(), build()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    for inputs, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), label)
        loss.backward()
        optimizer.step()
    torch.save(for_export.eval().state_dict(), "model.pt")
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
