"""The same loop with `holdfast.guard`."""

import storm
import task
import torch

import holdfast

torch.manual_seed(0)
loader = task.make_loader(storm.config["batches"])
model = task.build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()

with holdfast.guard(model=model, optimizer=optimizer) as run:
    run.state.setdefault("done", 0)
    for epoch in run.epochs(storm.config["epochs"]):
        for inputs, labels in run.batches(loader):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            run.state["done"] += 1
            storm.batch_done(run.state["done"])
        print(f"epoch {epoch + 1} loss {loss.item():.4f}", flush=True)
storm.finished(model.state_dict().values())
