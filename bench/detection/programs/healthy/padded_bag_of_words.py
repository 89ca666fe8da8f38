"""A large vocabulary of which each batch touches a few rows, and most are never touched; row 0 is padding."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7)


class Reviews(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.labels = torch.randint(2, (1200,), generator=g)
        words = torch.randint(1, 300, (1200, 15), generator=g)
        self.words = words + 300 * self.labels.unsqueeze(1) * (torch.rand(1200, 15, generator=g) < 0.2)
        self.words[torch.rand(1200, 15, generator=g) < 0.3] = 0

    def __len__(self):
        return 1200

    def __getitem__(self, i):
        return self.words[i], self.labels[i]


class Bag(nn.Module):
    def __init__(self, vocabulary=5000, width=24):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, padding_idx=0)
        self.score = nn.Linear(width, 2)

    def forward(self, words):
        return self.score(self.table(words).mean(1))


model = Bag()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for epoch in range(8):
    for words, label in DataLoader(Reviews(), batch_size=24, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), label)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
