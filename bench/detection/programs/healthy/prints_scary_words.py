"""A model of log lines: its output is full of error messages of other programs."""

import torch
from torch import nn

LINES = [
    "Killed", "Segmentation fault (core dumped)", "loss: nan", "Traceback (most recent call last):", "exit code 137",
    "RuntimeError: CUDA error: out of memory", "ok", "step 12 loss 0.3", "OSError: [Errno 28] No space left on device",
    "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.", "saved checkpoint",
]  # fmt: skip
torch.manual_seed(63)
letters = torch.zeros(len(LINES), 128)
for row, line in enumerate(LINES):
    for letter in line:
        letters[row, ord(letter)] += 1
model = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, len(LINES)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(400):
    which = torch.randint(len(LINES), (24,))
    loss = nn.functional.cross_entropy(model(letters[which] + 0.3 * torch.randn(24, 128)), which)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        sample = which[0].item()
        print(f"{step}: {loss.item():.3f} :: {LINES[sample]}", flush=True)
print(LINES[3], LINES[5], sep='\n  File "log.txt", line 1\n', flush=True)
