"""Experiment trackers that know a setting of Ultralytics' and no variable of the environment."""

from ..import_hooks import after_import

OFF = ("clearml", "comet", "dvc", "hub", "mlflow", "neptune", "raytune", "sync", "tensorboard", "wandb")


def switch_off():
    after_import("ultralytics.utils", _settings)
    after_import("ultralytics.data.dataset", _caches)


def _settings(module):
    """In memory alone: its own way of setting one would write the user's file."""
    settings = module.SETTINGS
    dict.update(settings, {name: False for name in OFF if name in settings})


def _caches(module):
    """Ultralytics keeps what it found of labels in a file beside them; what it puts into it is read on."""

    def save_dataset_cache_file(prefix, path, x, version):
        x["version"] = version

    if hasattr(module, "save_dataset_cache_file"):
        module.save_dataset_cache_file = save_dataset_cache_file
