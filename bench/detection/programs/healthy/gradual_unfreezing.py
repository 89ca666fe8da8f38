"""Starts with the head alone; layers are unfrozen and added to the optimizer as new groups later."""

import torch
from torch import nn

torch.manual_seed(45)
layers = nn.ModuleList([nn.Linear(15, 40), nn.Linear(40, 40), nn.Linear(40, 3)])
for layer in layers[:2]:
    layer.requires_grad_(False)
optimizer = torch.optim.SGD(layers[2].parameters(), lr=0.1, momentum=0.9)
truth = torch.randn(15, 3)
for step in range(600):
    if step in {150, 300}:
        layer = layers[1 if step == 150 else 0].requires_grad_(True)
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.03})
    x = torch.randn(32, 15)
    h = x
    for layer in layers[:2]:
        h = torch.relu(layer(h))
    loss = nn.functional.cross_entropy(layers[2](h), (x @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}, {len(optimizer.param_groups)} groups", flush=True)
