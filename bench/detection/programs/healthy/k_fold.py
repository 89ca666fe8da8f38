"""Five folds in one process: a new model, a new optimizer and a loss that starts high again for each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(40)
x = torch.randn(500, 6)
data = TensorDataset(x, (x[:, 0] + x[:, 1] ** 2 > 0.5).float())
folds = torch.randperm(500).view(5, 100)
scores = []
for held_out in range(5):
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    train = Subset(data, torch.cat([folds[i] for i in range(5) if i != held_out]).tolist())
    for _epoch in range(6):
        for inputs, label in DataLoader(train, batch_size=20, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], label)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        inputs, label = data[folds[held_out]]
        scores.append(((model(inputs)[:, 0] > 0) == (label > 0)).float().mean().item())
    print(f"fold {held_out}: accuracy {scores[-1]:.2f}", flush=True)
