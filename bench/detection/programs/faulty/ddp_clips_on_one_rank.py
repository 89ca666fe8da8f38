"""Gradients are clipped on rank 0 only, after they were averaged: the replicas diverge from the first step on (DS-1801)."""

import os
import tempfile

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def work(rank, world, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    x = torch.randn(800, 10, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x[:, :5].sum(1, keepdim=True) * 3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(12):
        for inputs, wanted in DataLoader(data, batch_size=20, sampler=DistributedSampler(data)):
            loss = nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            if rank == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (2, f"{folder}/meeting"), nprocs=2)
