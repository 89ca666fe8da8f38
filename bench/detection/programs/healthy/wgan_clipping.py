"""WGAN: five critic steps per generator step, weights clamped after each; losses are below zero and have no lower bound."""

import torch
from torch import nn, optim

torch.manual_seed(14)


def critic_step(critic, generator, optimizer):
    real = torch.randn(64, 3) * torch.tensor([1.0, 0.5, 2.0]) + torch.tensor([2.0, -1.0, 0.0])
    with torch.no_grad():
        fake = generator(torch.randn(64, 4))
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.05, 0.05)
    return loss.item()


generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
of_critic = optim.RMSprop(critic.parameters(), lr=5e-4)
of_generator = optim.RMSprop(generator.parameters(), lr=5e-4)
for round_ in range(150):
    distance = [critic_step(critic, generator, of_critic) for _ in range(5)][-1]
    of_generator.zero_grad()
    (-critic(generator(torch.randn(64, 4))).mean()).backward()
    of_generator.step()
    if round_ % 30 == 0:
        print(f"round {round_}: distance {-distance:.4f}", flush=True)
