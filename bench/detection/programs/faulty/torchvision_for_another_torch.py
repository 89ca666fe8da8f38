"""torchvision was built for another torch: its operators are missing when the first evaluation needs them (F26)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(50):
    x = torch.randn(32, 16)
    loss = nn.functional.mse_loss(model(x), x[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
boxes = model(x).detach()
if not hasattr(torch.ops.torchvision, "nms"):  # the real thing, where torchvision is not loaded
    raise RuntimeError("operator torchvision::nms does not exist")
torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.5)
