"""A million real optimizer steps at the maximum speed of torch, with one weight and SGD, to measure the size of the records.

Records are merged by steps and by seconds, so fast steps leave fewer records than slow steps. With `step_ms`, the monotonic clock
advances by that much at each step. This gives the records of a training of many hours in minutes.
"""

import json
import os
import time

config = json.loads(os.environ["BENCH_CONFIG"])
real_clock = time.monotonic
ahead = 0.0
if config["step_ms"]:  # before the import of torch, when the probe stores its reference to the clock
    time.monotonic = lambda: real_clock() + ahead

import torch  # noqa: E402

weight = torch.nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.SGD([weight], lr=1e-6)
began = real_clock()
for _ in range(config["steps"]):
    optimizer.zero_grad()
    loss = weight * weight
    loss.backward()
    ahead += config["step_ms"] / 1e3
    optimizer.step()
result = {
    "steps": config["steps"],
    "loop_s": real_clock() - began,
    "cpu_s": time.process_time(),
    "final_loss": loss.item(),
}
with open(config["out"], "w") as out:  # noqa: PTH123 as in a plain script
    json.dump(result, out)
