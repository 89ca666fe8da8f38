"""Ultralytics' assigner in a small loop; once, the boxes of a mask are counted differently the second time (F04)."""

import torch
from torch import nn
from ultralytics.utils.tal import TaskAlignedAssigner

torch.manual_seed(0)
ANCHORS, CLASSES = 64, 3
places = torch.rand(ANCHORS, 2) * 64
assigner = TaskAlignedAssigner(topk=5, num_classes=CLASSES)
count_right = assigner.iou_calculation


def count_wrong(boxes, predicted):
    """What a faulty boolean index of a device does."""
    overlaps = count_right(boxes, predicted)
    return torch.cat([overlaps, overlaps[:3]])


model = nn.Linear(16, ANCHORS * CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    scores = model(torch.randn(2, 16)).view(2, ANCHORS, CLASSES)
    boxes = torch.cat([places - 8, places + 8], 1).expand(2, -1, -1)
    corner = torch.rand(2, 4, 2) * 32
    truth, labels = torch.cat([corner, corner + 24], 2), torch.randint(CLASSES, (2, 4, 1))
    if step == 170:
        assigner.iou_calculation = count_wrong
    assigned = assigner(scores.detach().sigmoid(), boxes, places, labels, truth, torch.ones(2, 4, 1, dtype=torch.bool))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, assigned[2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
