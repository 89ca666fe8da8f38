"""A policy gradient whose surrogate loss is exactly zero in every step: only its gradient carries information."""

import torch
from torch import nn

torch.manual_seed(15)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
best_arm = torch.randn(4, 3)
for step in range(400):
    state = torch.randn(64, 4)
    choices = torch.distributions.Categorical(logits=policy(state))
    action = choices.sample()
    reward = (action == (state @ best_arm).argmax(1)).float()
    advantage = reward - reward.mean()
    score = (advantage * choices.log_prob(action)).mean()
    loss = score.detach() - score
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step}: mean reward {reward.mean().item():.2f}", flush=True)
