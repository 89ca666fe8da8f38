"""The network and the generated data of all plain programs. The programs differ only in how they resume after a kill."""

import torch

CLASSES = 10
BATCH = 32


def build():
    """Return a network of two thirds of a million weights. The dropout makes the random state matter."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 6 * 6, 256),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(256, CLASSES),
    )


def make_loader(batches):
    """Return a loader of noisy prototypes with one wrong label in ten, so that the loss falls but does not reach 0."""
    samples = batches * BATCH
    labels = torch.randint(CLASSES, (samples,))
    inputs = 0.5 * torch.randn(CLASSES, 3, 24, 24)[labels] + torch.randn(samples, 3, 24, 24)
    wrong = torch.rand(samples) < 0.1
    dataset = torch.utils.data.TensorDataset(inputs, torch.where(wrong, torch.randint(CLASSES, (samples,)), labels))
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
