"""Changes to what the command of an Ultralytics training requests: read once, each part passed to its module.

{"settings": {"batch": 4, ...},                                                  settings
 "validation": {"every": 5, "batch": 4, "max_det": 100, "best_by": "mAP50"},     validation, best_metric
 "clear_cache": {"epochs": 10, "steps": 0},                                      empty_cache
 "assigner": "cpu"}                                                              assigner

Every part is optional, and nothing is changed for a missing one. A part that cannot be applied is noted and ignored.
"""

import json
import os

from ... import protocol
from ...import_hooks import after_import
from .assigner import AssignerOnCpu
from .callbacks import wrap_method
from .empty_cache import CacheClearing
from .settings import Settings
from .validation import Validation

OBJECTS = ("settings", "validation", "clear_cache")


def read_overrides(note):
    """Return the overrides in the environment variable; empty if there are none or they cannot be parsed."""
    text = os.environ.get(protocol.OVERRIDES)
    if not text:
        return {}
    try:
        overrides = json.loads(text)
    except ValueError:
        overrides = None
    if isinstance(overrides, dict) and all(isinstance(overrides.get(name, {}), dict) for name in OBJECTS):
        return overrides
    note("the overrides cannot be parsed: the training runs as its command says", text[:300])
    return {}


class Overrides(object):
    def __init__(self, probe, callbacks, overrides):
        self._callbacks = callbacks
        self._settings = Settings(callbacks, overrides["settings"]) if overrides.get("settings") else None
        self._parts = [] if self._settings is None else [self._settings]
        if overrides.get("validation"):
            self._parts.append(Validation(probe.torch, callbacks, overrides["validation"]))
        if overrides.get("clear_cache"):
            clearing = CacheClearing(probe.torch, callbacks, overrides["clear_cache"])
            self._parts.append(clearing)
            callbacks.followers.append(clearing)
        if overrides.get("assigner") == "cpu":
            after_import("ultralytics.utils.tal", AssignerOnCpu(probe.torch, callbacks).watch)

    def watch_model(self, module):
        """Apply setting overrides when `ultralytics.engine.model` is imported."""
        if self._settings is not None:
            self._settings.wrap_model(module.Model)

    def watch(self, module):
        """Wrap the trainer when `ultralytics.engine.trainer` is imported. Call this after other wrappers, so that they
        see the overrides.
        """
        if self._parts:
            wrap_method(module.BaseTrainer, "__init__", self._around_init)

    def _around_init(self, original, trainer, args, kwargs):
        for part in self._parts:
            with self._callbacks.report_errors("applying overrides"):
                part.wrap_trainer(type(trainer))
        if self._settings is not None:
            with self._callbacks.report_errors("setting overrides"):
                args, kwargs = _with_overrides(args, kwargs, self._settings.apply)
        return original(trainer, *args, **kwargs)


def _with_overrides(args, kwargs, change):
    """Change the overrides in the arguments of BaseTrainer(cfg, overrides, _callbacks)."""
    if len(args) > 1:
        return (args[0], change(args[1]), *args[2:]), kwargs
    return args, dict(kwargs, overrides=change(kwargs.get("overrides")))
