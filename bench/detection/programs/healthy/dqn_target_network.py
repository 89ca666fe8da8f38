"""Q-learning on a corridor: a replay list that fills and stops, and a target network that is copied periodically."""

import copy
import random
from collections import deque

import torch
from torch import nn

torch.manual_seed(17)
random.seed(17)
LENGTH = 5
online = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(online)
optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
replay = deque(maxlen=2000)
eye = torch.eye(LENGTH)
place, updates = 0, 0
for step in range(1500):
    wander = random.random() < max(0.1, 1 - step / 800)
    action = random.randrange(2) if wander else online(eye[place]).argmax().item()
    following = max(0, min(LENGTH - 1, place + (1 if action else -1)))
    replay.append((place, action, float(following == LENGTH - 1), following))
    place = 0 if following == LENGTH - 1 else following
    if len(replay) < 64 or step % 2:
        continue
    s, a, r, n = map(torch.tensor, zip(*random.sample(replay, 32), strict=True))
    with torch.no_grad():
        wanted = r + 0.95 * (1 - r) * target(eye[n]).amax(1)
    loss = nn.functional.smooth_l1_loss(online(eye[s]).gather(1, a[:, None])[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1
    if updates % 100 == 0:
        target.load_state_dict(online.state_dict())
        print(f"step {step}: loss {loss.item():.5f}, worth of the start {online(eye[0]).max().item():.3f}", flush=True)
