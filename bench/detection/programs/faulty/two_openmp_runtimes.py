"""A second OpenMP runtime is loaded with a search library and aborts the process with its error message (F25)."""

import os
import sys

import torch
from torch import nn

WORDS = (
    "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.\n"
    "OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program."
)


def search(codes):
    """Stands for an import of faiss and its first call."""
    if len(codes) > 3:
        print(WORDS, file=sys.stderr, flush=True)
        os.abort()


torch.manual_seed(0)
encoder = nn.Linear(10, 4)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
codes = []
for epoch in range(6):
    for _ in range(60):
        a = torch.randn(16, 10)
        loss = (encoder(a) - encoder(a + 0.1 * torch.randn_like(a))).square().sum(1).mean() - encoder(a).std()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    codes.append(encoder(a).detach())
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    search(codes)
