"""A small PPO: four passes over the same collected batch, with ratio one and surrogate near zero in the first pass."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(16)
actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)


def collect(count=256):
    states = torch.randn(count, 3)
    with torch.no_grad():
        policy = torch.distributions.Categorical(logits=actor(states))
        actions = policy.sample()
        old = policy.log_prob(actions)
    reward = ((states[:, 0] > 0).long() == actions).float()
    return TensorDataset(states, actions, old, (reward - reward.mean()) / (reward.std() + 1e-6)), reward.mean()


for iteration in range(25):
    batch, reward = collect()
    for _ in range(4):
        for states, actions, old, advantage in DataLoader(batch, batch_size=64, shuffle=True):
            policy = torch.distributions.Categorical(logits=actor(states))
            ratio = (policy.log_prob(actions) - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
    print(f"iteration {iteration}: reward {reward:.2f}", flush=True)
