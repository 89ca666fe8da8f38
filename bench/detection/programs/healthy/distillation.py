"""A large frozen teacher, a small student, two losses in one; the teacher's weights never get a gradient."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mlp(*widths):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def distil(teacher, student, loader, epochs, temperature=2.0):
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for epoch in range(epochs):
        for x, y in loader:
            with torch.no_grad():
                soft = (teacher(x) / temperature).softmax(1)
            logits = student(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss += nn.functional.kl_div((logits / temperature).log_softmax(1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield epoch, loss.item()


torch.manual_seed(60)
x = torch.randn(1000, 12)
teacher = mlp(12, 256, 256, 4).eval()
loader = DataLoader(TensorDataset(x, teacher(x).detach().argmax(1)), batch_size=25, shuffle=True)
for epoch, loss in distil(teacher, mlp(12, 32, 4), loader, epochs=10):
    print(f"epoch {epoch}: {loss:.4f}", flush=True)
