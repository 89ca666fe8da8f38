"""A student predicts a teacher's output for another view; the teacher is a moving average and gets no gradient."""

import copy

import torch
from torch import nn

torch.manual_seed(47)


def view(x):
    return x + 0.2 * torch.randn_like(x)


class Byol:
    def __init__(self):
        self.student = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        trained = [*self.student.parameters(), *self.predictor.parameters()]
        self.optimizer = torch.optim.Adam(trained, lr=2e-3)

    def step(self, x):
        a, b = view(x), view(x)
        loss = self.towards(a, b) + self.towards(b, a)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return loss.item()

    def towards(self, seen, other):
        with torch.no_grad():
            goal = nn.functional.normalize(self.teacher(other), dim=1)
        return 2 - 2 * (nn.functional.normalize(self.predictor(self.student(seen)), dim=1) * goal).sum(1).mean()


byol = Byol()
mixing = torch.randn(4, 16)
for step in range(350):
    loss = byol.step(torch.randn(48, 4) @ mixing)
    if step % 70 == 0:
        print(f"{step}: {loss:.4f}", flush=True)
