"""A mixture density is fitted by its log-likelihood: the loss passes zero and continues to fall below it."""

import torch
from torch import nn

torch.manual_seed(18)


class Mixture(nn.Module):
    def __init__(self, parts=8):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parts))
        self.mean = nn.Parameter(torch.randn(parts) * 2)
        self.log_scale = nn.Parameter(torch.zeros(parts))

    def log_prob(self, x):
        each = torch.distributions.Normal(self.mean, self.log_scale.exp()).log_prob(x[:, None])
        return torch.logsumexp(each + self.weight.log_softmax(0), 1)


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
for step in range(800):
    x = torch.randint(3, (128,)).float() - 1 + 0.02 * torch.randn(128)
    loss = -model.log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, f"{loss.item():.3f}", flush=True)
