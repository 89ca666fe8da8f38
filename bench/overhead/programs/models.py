"""The networks and the generated data of all variants. The variants differ only in the monitoring."""

import torch

CLASSES = 10


class Residual(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return torch.add(x, torch.tanh(self.linear(x)), alpha=0.1)


def build(kind):
    """Return a network. `deep` has more than 200 small tensors, the worst case for per-tensor checks; the others have few."""
    if kind == "mlp":
        return torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, CLASSES),
        )
    if kind in {"cnn", "cnn-wide"}:
        width = 16 if kind == "cnn" else 32
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(width, 2 * width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(2 * width * 6 * 6, CLASSES),
        )
    if kind == "deep":
        return torch.nn.Sequential(*(Residual(16) for _ in range(101)), torch.nn.Linear(16, CLASSES))
    raise ValueError(f"unknown net: {kind}")


def make_data(kind, samples):
    """Return noisy prototypes with one wrong label in ten: the loss falls but stays above 0, so nothing causes a warning."""
    shape = {"mlp": (64,), "cnn": (3, 24, 24), "cnn-wide": (3, 24, 24), "deep": (16,)}[kind]
    labels = torch.randint(CLASSES, (samples,))
    inputs = 0.5 * torch.randn(CLASSES, *shape)[labels] + torch.randn(samples, *shape)
    wrong = torch.rand(samples) < 0.1
    return torch.utils.data.TensorDataset(inputs, torch.where(wrong, torch.randint(CLASSES, (samples,)), labels))


def build_optimizer(name, parameters):
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
    raise ValueError(f"unknown optimizer: {name}")
