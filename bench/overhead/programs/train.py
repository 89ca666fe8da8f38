"""An ordinary training script that times its own loop.

BENCH_CONFIG contains the configuration as JSON, because TrainCheck does not pass arguments on: net, optimizer, batch, samples,
warmup, steps, out. The script writes one JSON line with the times to standard output and to the file `out`, which no tool can intercept.
"""

import hashlib
import itertools
import json
import os
import time

import models
import torch

config = json.loads(os.environ["BENCH_CONFIG"])
torch.manual_seed(0)
dataset = models.make_data(config["net"], config["samples"])
train_loader = torch.utils.data.DataLoader(dataset, batch_size=config["batch"], shuffle=True, drop_last=True)
model = models.build(config["net"])
optimizer = models.build_optimizer(config["optimizer"], model.parameters())
criterion = torch.nn.CrossEntropyLoss()

marks = []
loop_cpu = 0.0
loss = None
while len(marks) < config["warmup"] + config["steps"]:
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        marks.append(time.perf_counter())
        if len(marks) == config["warmup"]:
            loop_cpu = time.process_time()
        if len(marks) % 100 == 0:
            print(f"step {len(marks)} loss {loss.item():.4f}", flush=True)
        if len(marks) == config["warmup"] + config["steps"]:
            break
loop_cpu = time.process_time() - loop_cpu

marks = marks[config["warmup"] - 1 :]
gaps = sorted(after - before for before, after in itertools.pairwise(marks))
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
result = {
    "steps": config["steps"],
    "loop_s": marks[-1] - marks[0],
    "loop_cpu_s": loop_cpu,
    "step_ms": 1e3 * (marks[-1] - marks[0]) / config["steps"],
    "median_step_ms": 1e3 * gaps[len(gaps) // 2],
    "final_loss": loss.item(),
    "weights": weights.hexdigest()[:16],
    "tensors": len(list(model.parameters())),
    "threads": torch.get_num_threads(),
    "torch": torch.__version__,
}
line = json.dumps(result)
with open(config["out"], "w") as out:  # noqa: PTH123 as in a plain script
    out.write(line)
print(line, flush=True)
