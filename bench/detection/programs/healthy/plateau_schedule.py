"""ReduceLROnPlateau lowers the rate repeatedly on a problem whose noise floor is reached early."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(6)
x = torch.randn(2000, 6)
y = x @ torch.randn(6, 1) + 0.5 * torch.randn(2000, 1)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
for _ in range(30):
    for part in torch.randperm(2000).split(50):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[part]), y[part])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scheduler.step(nn.functional.mse_loss(model(x), y))
print(f"lr {optimizer.param_groups[0]['lr']:.1e}, loss {loss.item():.3f}")
