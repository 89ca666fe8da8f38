"""Two ranks with accumulation: three of four backward passes run under no_sync, and only rank 0 saves and evaluates."""

import os
import tempfile
from contextlib import nullcontext

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(56)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(100 + rank)
    for step in range(150):
        for micro in range(4):
            x = torch.randn(16, 6)
            with model.no_sync() if micro < 3 else nullcontext():
                (nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin()) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 50 == 49:
            torch.save(model.module.state_dict(), "model.pt")
            with torch.no_grad():
                x = torch.randn(500, 6)
                print(step, nn.functional.mse_loss(model.module(x), x.sum(1, keepdim=True).sin()).item(), flush=True)
    del model, optimizer  # a replica that outlives its process group aborts now and then
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (f"{folder}/meeting",), nprocs=2)
