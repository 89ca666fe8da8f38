"""A label that is not in the table ends the second epoch with a KeyError."""

import torch
from torch import nn

NAMES = {"cat": 0, "dog": 1, "bird": 2}


def batches(epoch):
    torch.manual_seed(epoch)
    for number in range(60):
        names = [list(NAMES)[i] for i in torch.randint(3, (16,))]
        if (epoch, number) == (1, 30):
            names[3] = "Bird"
        yield torch.randn(16, 6), torch.tensor([NAMES[name] for name in names])


model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for x, y in batches(epoch):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}", flush=True)
