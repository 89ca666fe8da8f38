"""PolynomialLR is created for 12 epochs and stepped with every batch: from the twelfth step on the rate is exactly 0."""

import torch
from torch import nn
from torch.optim.lr_scheduler import PolynomialLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
EPOCHS = 12
x = torch.randn(1000, 10)
y = (x[:, 0] * x[:, 1] + x[:, 2]).unsqueeze(1)


class Task:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.schedule = PolynomialLR(self.optimizer, total_iters=EPOCHS)

    def run(self):
        for epoch in range(EPOCHS):
            for inputs, wanted in DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True):
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.net(inputs), wanted)
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


Task().run()
