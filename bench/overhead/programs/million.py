"""A million real optimizer steps at the greatest speed torch allows: one weight, SGD. What is left behind is what a million steps take."""

import json
import os
import time

import torch

config = json.loads(os.environ["BENCH_CONFIG"])
weight = torch.nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.SGD([weight], lr=1e-6)
began = time.perf_counter()
for _ in range(config["steps"]):
    optimizer.zero_grad()
    loss = weight * weight
    loss.backward()
    optimizer.step()
result = {"steps": config["steps"], "loop_s": time.perf_counter() - began, "final_loss": loss.item()}
with open(config["out"], "w") as out:  # noqa: PTH123 a plain script's way
    json.dump(result, out)
