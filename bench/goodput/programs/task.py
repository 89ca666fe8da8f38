"""The net and the made data that all plain programs train; each of them differs only in how it goes on after a death."""

import torch

CLASSES = 10
BATCH = 32


def build():
    """Two thirds of a million weights, with a dropout, so that the random numbers matter too."""
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


def made_loader(batches):
    """Noisy prototypes, one label in ten wrong: learned, and never quite solved."""
    samples = batches * BATCH
    labels = torch.randint(CLASSES, (samples,))
    inputs = 0.5 * torch.randn(CLASSES, 3, 24, 24)[labels] + torch.randn(samples, 3, 24, 24)
    wrong = torch.rand(samples) < 0.1
    dataset = torch.utils.data.TensorDataset(inputs, torch.where(wrong, torch.randint(CLASSES, (samples,)), labels))
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
