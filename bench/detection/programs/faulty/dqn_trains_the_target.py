"""The optimizer has the target network, the loss uses the online network: neither ever changes."""

import copy
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
online = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(online)
optimizer = torch.optim.Adam(target.parameters(), lr=2e-3)
eye = torch.eye(8)
replay = []
for place in range(7):
    replay += [(place, 1, float(place == 6), place + 1), (place, 0, 0.0, max(0, place - 1))]
for step in range(500):
    s, a, r, n = map(torch.tensor, zip(*random.choices(replay, k=32), strict=True))
    with torch.no_grad():
        wanted = r + 0.9 * (1 - r) * target(eye[n]).amax(1)
    loss = nn.functional.smooth_l1_loss(online(eye[s]).gather(1, a[:, None])[:, 0], wanted)
    online.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.5f}", flush=True)
