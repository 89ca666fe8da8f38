"""A model with two heads, of which this task uses one; the other does not change, although the optimizer has it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 50), nn.LeakyReLU(), nn.Linear(50, 50), nn.LeakyReLU())
        self.heads = nn.ModuleDict({"price": nn.Linear(50, 1), "colour": nn.Linear(50, 7)})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def main():
    torch.manual_seed(11)
    x = torch.randn(1000, 10)
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        losses = []
        for inputs, price in DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs, "price"), price)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"{epoch}: {sum(losses) / len(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
