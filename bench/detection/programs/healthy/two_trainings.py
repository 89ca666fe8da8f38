"""First an autoencoder, then a classifier on its codes: two models and two optimizers, one after the other."""

import torch
from torch import nn

torch.manual_seed(53)
mixing = torch.randn(5, 25)


def pretrain(steps):
    encoder, decoder = nn.Linear(25, 5), nn.Linear(5, 25)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=5e-3)
    for _ in range(steps):
        x = torch.randn(32, 5) @ mixing
        loss = nn.functional.mse_loss(decoder(encoder(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"autoencoder {loss.item():.4f}", flush=True)
    return encoder.requires_grad_(False)


def classify(encoder, steps):
    head = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        hidden = torch.randn(32, 5)
        loss = nn.functional.cross_entropy(head(encoder(hidden @ mixing)), (hidden[:, 0] > 0.5).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"classifier {loss.item():.4f}", flush=True)


classify(pretrain(400), 400)
