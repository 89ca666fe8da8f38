"""No optimizer at all: gradient descent written out, as in a textbook."""

import torch

torch.manual_seed(43)
x = torch.randn(256, 3)
y = (x @ torch.tensor([[1.0], [-2.0], [0.5]])).sigmoid()
w1 = (torch.randn(3, 16) * 0.5).requires_grad_()
b1 = torch.zeros(16, requires_grad=True)
w2 = (torch.randn(16, 1) * 0.5).requires_grad_()
for step in range(1200):
    guess = torch.sigmoid(torch.tanh(x @ w1 + b1) @ w2)
    loss = (guess - y).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in (w1, b1, w2):
            p.sub_(2.0 * p.grad)
            p.grad.zero_()
    if step % 200 == 0:
        print(f"{step}: {loss.item():.5f}", flush=True)
