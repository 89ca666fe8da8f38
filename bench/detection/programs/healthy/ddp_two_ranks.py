"""DistributedDataParallel over gloo with two ranks on this machine, each with half of the data."""

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
    generator = torch.Generator().manual_seed(55)
    x = torch.randn(800, 10, generator=generator)
    data = TensorDataset(x, (x[:, :5].sum(1) > x[:, 5:].sum(1)).long())
    sampler = DistributedSampler(data)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(12):
        sampler.set_epoch(epoch)
        for inputs, label in DataLoader(data, batch_size=20, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), label)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    del model, optimizer  # a replica that outlives its process group aborts now and then
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (2, f"{folder}/meeting"), nprocs=2)
