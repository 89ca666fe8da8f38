"""Matrix factorisation with sparse gradients: SparseAdam for the tables, plain Adam for the biases."""

import torch
from torch import nn

torch.manual_seed(8)
USERS, FILMS = 400, 300
truth = torch.randn(USERS, 4) @ torch.randn(4, FILMS)
users, films = nn.Embedding(USERS, 8, sparse=True), nn.Embedding(FILMS, 8, sparse=True)
bias = nn.Parameter(torch.zeros(1))
for table in (users, films):
    nn.init.normal_(table.weight, std=0.3)
sparse = torch.optim.SparseAdam([*users.parameters(), *films.parameters()], lr=0.02)
dense = torch.optim.Adam([bias], lr=0.01)
for step in range(800):
    u, f = torch.randint(USERS, (64,)), torch.randint(FILMS, (64,))
    guess = (users(u) * films(f)).sum(1) + bias
    loss = (guess - truth[u, f]).square().mean()
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
