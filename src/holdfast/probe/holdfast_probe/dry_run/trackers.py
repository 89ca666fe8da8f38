"""Experiment trackers that can only be disabled by an Ultralytics setting, not by an environment variable."""

from ..import_hooks import after_import

TRACKERS = ("clearml", "comet", "dvc", "hub", "mlflow", "neptune", "raytune", "sync", "tensorboard", "wandb")


def disable():
    after_import("ultralytics.utils", _disable_in_settings)
    after_import("ultralytics.data.dataset", _disable_label_cache)


def _disable_in_settings(module):
    """Change the settings in memory only: the settings object's own methods would write the user's file."""
    settings = module.SETTINGS
    dict.update(settings, {name: False for name in TRACKERS if name in settings})


def _disable_label_cache(module):
    """Do not write the label cache, which Ultralytics stores next to the labels. It reads the version set here later."""

    def save_dataset_cache_file(prefix, path, x, version):
        x["version"] = version

    if hasattr(module, "save_dataset_cache_file"):
        module.save_dataset_cache_file = save_dataset_cache_file
