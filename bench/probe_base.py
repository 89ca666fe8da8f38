"""Base cost of the probe per step: its hooks and wrappers around a training that does nothing.

    python bench/probe_base.py [steps]

Prints microseconds of processor time per step, alternately without and with the probe, after the first thousand steps. The
difference is the base cost. The best tenth of the steps of each run counts, to reduce the influence of other programs.
Inspectors are off, so that only the code that runs on every step is measured.
"""

import fcntl
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from holdfast.probe.holdfast_probe import heartbeat

PROBE = pathlib.Path(heartbeat.__file__).parent.parent
PAIRS = 5

TRAINING = """
import sys, time, torch
steps = int(sys.argv[1])
if "holdfast_probe.probe" in sys.modules:
    sys.modules["holdfast_probe.probe"]._probe.inspectors.clear()
    sys.modules["holdfast_probe.probe"]._probe.watching = False
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.0)
data = torch.utils.data.DataLoader(torch.zeros(4000, 1), batch_size=8)
def train(steps):
    for _ in range(steps // len(data)):
        for batch in data:
            (weight * 1.0).sum().backward()
            optimizer.step()
train(1500)
times = []
for _ in range(10):
    began = time.thread_time()
    train(steps // 10)
    times.append(1e6 * (time.thread_time() - began) / (steps // 10))
print(min(times))
"""


def measure(steps, environment):
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(steps)], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    bare_environment = dict(os.environ, OMP_NUM_THREADS="1")
    bare, probed = [], []
    for _ in range(PAIRS):
        bare.append(measure(steps, bare_environment))
        with tempfile.TemporaryDirectory() as folder, (pathlib.Path(folder) / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            heartbeat.create(folder + "/heartbeat")
            probed_environment = dict(
                bare_environment,
                PYTHONPATH=str(PROBE),
                HOLDFAST_ATTEMPT_DIR=folder,
                HOLDFAST_HEARTBEAT=folder + "/heartbeat",
                HOLDFAST_LOCK=folder + "/lock",
            )
            probed.append(measure(steps, probed_environment))
    base = statistics.median(probed) - statistics.median(bare)
    print(f"bare   {statistics.median(bare):8.1f} us per step  ({min(bare):.1f} .. {max(bare):.1f})")
    print(f"probed {statistics.median(probed):8.1f} us per step  ({min(probed):.1f} .. {max(probed):.1f})")
    print(f"base   {base:8.1f} us per step")


if __name__ == "__main__":
    main()
