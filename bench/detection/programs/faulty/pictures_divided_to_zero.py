"""uint8 images are scaled with // 255: every input except the brightest pixels is 0, so the first layer learns nothing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
label = torch.randint(4, (1000,))
images = (torch.rand(1000, 1, 12, 12) * 100).to(torch.uint8)
for i, k in enumerate(label.tolist()):
    images[i, 0, 3 * k : 3 * k + 3] += 150
loader = DataLoader(TensorDataset(images // 255, label), batch_size=25, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(8):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.float()), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
