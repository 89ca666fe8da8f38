"""Changes to Ultralytics during a dry run: no trackers, no label cache, and loaders that never end."""

import functools

from ...import_hooks import after_import

TRACKERS = ("clearml", "comet", "dvc", "hub", "mlflow", "neptune", "raytune", "sync", "tensorboard", "wandb")
"""Experiment trackers that can only be disabled by a setting, not by an environment variable."""


def begin_dry_run():
    after_import("ultralytics.utils", _disable_trackers)
    after_import("ultralytics.data.dataset", _disable_label_cache)


def override_loaders(override):
    after_import("ultralytics.data.build", lambda module: _make_endless(module, override))


def _disable_trackers(module):
    """Change the settings in memory only: the settings object's own methods would write the user's file."""
    settings = module.SETTINGS
    dict.update(settings, {name: False for name in TRACKERS if name in settings})


def _disable_label_cache(module):
    """Do not write the label cache, which Ultralytics stores next to the labels. It reads the version set here later."""

    def save_dataset_cache_file(prefix, path, x, version):
        x["version"] = version

    if hasattr(module, "save_dataset_cache_file"):
        module.save_dataset_cache_file = save_dataset_cache_file


def _make_endless(module, override):
    loader_class = getattr(module, "InfiniteDataLoader", None)
    if loader_class is None:
        return
    original = loader_class.__iter__

    @functools.wraps(original)
    def __iter__(loader):  # noqa: N807 - it replaces that method
        for batch in original(loader):
            yield batch
        while override.keeps_yielding() and hasattr(loader, "iterator"):
            yield next(loader.iterator)

    loader_class.__iter__ = __iter__
