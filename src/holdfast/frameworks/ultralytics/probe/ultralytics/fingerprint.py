"""Whether a snapshot belongs to this training, and what has changed since."""

import os
import sys

from ...snapshots.fingerprint import fingerprint

NOT_COMPARED = frozenset(
    ("save_dir", "name", "project", "exist_ok", "resume", "device", "verbose", "plots", "save_period")
)
"""Settings that do not change the result, or that the fingerprint contains in another form."""
IDENTITY_SETTINGS = ("task", "data", "epochs", "model")
"""Settings that identify a training."""


def select_identity(overrides):
    """Return the requested settings that distinguish a training from others."""
    return {name: str(overrides[name]) for name in IDENTITY_SETTINGS if overrides.get(name) is not None}


def why_other_training(then, now):
    """Return why a snapshot belongs to another training, or None."""
    both = [name for name in IDENTITY_SETTINGS if name in then and name in now and name != "epochs"]
    return next(("%s is %s in the snapshot and %s now" % (n, then[n], now[n]) for n in both if then[n] != now[n]), None)


def changed_settings(then, now):
    """Return the names of settings that have changed."""
    names = [name for name in set(then) | set(now) if then.get(name) != now.get(name)]
    return {name.split(" ", 1)[-1] for name in names if name.startswith("setting ")} | {
        name for name in names if name in ("workers", "images")
    }


def make_fingerprint(torch, trainer, validation):
    """Return everything that the results depend on. `validation` contains the validation overrides."""
    values = fingerprint(torch, {"model": trainer.model})
    from ultralytics import __version__

    values["ultralytics"] = __version__
    opencv = sys.modules.get("cv2")
    values["opencv"] = getattr(opencv, "__version__", None)
    values["images"] = _hash_images(trainer.train_loader.dataset)
    values["workers"] = trainer.train_loader.num_workers
    values.update(validation)
    for name, value in vars(trainer.args).items():
        if name not in NOT_COMPARED:
            values["setting " + name] = str(value)
    return values


def _hash_images(dataset):
    """Return a short hash of the image names."""
    import hashlib

    files = getattr(dataset, "im_files", None)
    if files is None:
        return len(dataset)
    return hashlib.sha256("\n".join(os.path.basename(str(path)) for path in files).encode("utf-8")).hexdigest()[:16]
