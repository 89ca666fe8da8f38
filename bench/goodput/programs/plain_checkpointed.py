"""The same loop with a checkpoint per epoch, as in the PyTorch tutorials. For torchrun --max-restarts.

The checkpoint contains model, optimizer and epoch.

It writes a temporary file and renames it, which is safer than most scripts: a kill during the save leaves the previous checkpoint.
"""

import os
from pathlib import Path

import storm
import task
import torch

checkpoint = Path("checkpoint.pt")
torch.manual_seed(0)
loader = task.make_loader(storm.config["batches"])
model = task.build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()

first = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1

for epoch in range(first, storm.config["epochs"]):
    for number, (inputs, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        storm.batch_done(epoch * len(loader) + number)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "checkpoint.tmp")
    os.replace("checkpoint.tmp", checkpoint)  # noqa: PTH105 as in a plain script
    print(f"epoch {epoch + 1} loss {loss.item():.4f}", flush=True)
storm.finished(model.state_dict().values())
