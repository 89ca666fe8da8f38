"""init_sync=False to start faster, with a seed that depends on the rank: the replicas are different models from the start."""

import os
import tempfile

import torch
from torch import distributed, multiprocessing, nn, optim
from torch.nn.parallel import DistributedDataParallel


class Job:
    def __init__(self, rank):
        torch.manual_seed(rank)
        net = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
        self.model = DistributedDataParallel(net, init_sync=False)
        self.optimizer = optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self):
        x = torch.randn(32, 6)
        loss = nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True).sin())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def work(rank, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    job = Job(rank)
    losses = [job.step() for _ in range(300)]
    print(f"rank {rank}: {losses[0]:.3f} -> {losses[-1]:.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (f"{folder}/meeting",), nprocs=2)
