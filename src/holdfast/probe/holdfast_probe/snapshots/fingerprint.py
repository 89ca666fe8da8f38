"""What must be the same for a training to resume exactly."""

import os
import platform
import sys


def fingerprint(torch, parts):
    """Return names and versions. Sums depend on the number of threads, and may depend on the processor."""
    values = {
        "python": "%d.%d" % sys.version_info[:2],
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else "",
        "devices": sorted({device for part in parts.values() for device in _find_devices(torch, part)}),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        values["numpy"] = str(numpy.__version__)
    if os.environ.get("PYTHONHASHSEED"):
        values["hash seed"] = os.environ["PYTHONHASHSEED"]
    return values


def settings(torch, parts):
    """Return the options that optimizers were created with. A snapshot restores the old ones, so a user who changed
    the learning rate must be warned.
    """
    plain = (bool, int, float, str, tuple, list, type(None))
    return {
        "%s's %s" % (name, key): repr(value)
        for name, part in parts.items()
        if isinstance(part, torch.optim.Optimizer)
        for key, value in part.defaults.items()
        if type(value) in plain
    }


def describe_loader(torch, loader):
    """Return what must be the same for a pass over this loader to resume."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return {"samples": len(loader)} if isinstance(loader, (list, tuple, range)) else {}
    values = {"batch size": loader.batch_size, "workers": loader.num_workers}
    # A DataLoader over an iterable dataset that was asked for its length warns later if the length is wrong.
    if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
        values.update(batches=_get_length(loader), samples=_get_length(loader.dataset))
    return {name: value for name, value in values.items() if type(value) is int}


def count_batches(torch, loader):
    """Return how many batches a whole pass yields; None if unknown."""
    if isinstance(loader, torch.utils.data.DataLoader):
        return describe_loader(torch, loader).get("batches")
    return _get_length(loader)


def _get_length(obj):
    try:
        return len(obj)
    except Exception:  # many have no length
        return None


def differences(before, now):
    """Return a text such as `torch: 2.12.0 then, 2.13.0 now` for each difference."""
    names = sorted(set(before) | set(now))
    return ["%s: %s then, %s now" % (n, before.get(n), now.get(n)) for n in names if before.get(n) != now.get(n)]


def _find_devices(torch, part):
    return {p.device.type for p in part.parameters()} if isinstance(part, torch.nn.Module) else set()
