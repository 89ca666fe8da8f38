"""Two classes, but the last layer has one output: softmax over one logit is 1, its cross entropy 0 (a frequent SO question)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    x = torch.randn(900, 12)
    labels = torch.zeros(900, dtype=torch.long)  # "class 1" is the only index that fits one output
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(15):
        for inputs, target in DataLoader(TensorDataset(x, labels), batch_size=30, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(net(inputs), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
