"""A plain loop without checkpoints."""

import storm
import task
import torch

torch.manual_seed(0)
loader = task.make_loader(storm.config["batches"])
model = task.build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()

done = 0
for epoch in range(storm.config["epochs"]):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        done += 1
        storm.batch_done(done)
    print(f"epoch {epoch + 1} loss {loss.item():.4f}", flush=True)
storm.finished(model.state_dict().values())
