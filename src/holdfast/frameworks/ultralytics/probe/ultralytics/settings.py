"""Setting overrides for Ultralytics, which take precedence over the command or script, and the settings in use.

They are inserted where the user's own settings arrive (`Model.train`, the overrides of a trainer), so that Ultralytics
derives everything from them. When it resumes from its last.pt, it accepts few settings and takes the rest from the
file; the overrides are set after that.
"""

import math

from .callbacks import SOURCE, wrap_method
from .trainer_state import RATE_SETTINGS

NOT_OVERRIDABLE = ("mode", "task", "resume", "cfg", "save_dir")
"""They identify the run, so they cannot be overridden."""
FROM_CHECKPOINT = ("model", "data", "pretrained", "name", "project", "exist_ok")
"""Settings that a training resumed from last.pt takes from the file or determines itself."""
AUTO_MOMENTUM = 0.9


class Settings(object):
    def __init__(self, callbacks, overrides):
        self._callbacks = callbacks
        self._requested = {name: value for name, value in overrides.items() if not self._is_refused(name)}
        self._supported = None

    def wrap_model(self, model_class):
        """Wrap `Model.train` when `ultralytics.engine.model` is imported."""
        if hasattr(model_class, "train"):
            wrap_method(model_class, "train", self._around_train)

    def wrap_trainer(self, trainer_class):
        """Wrap the methods of a trainer class before a trainer is created."""
        for name, around in (
            ("check_resume", self._around_check_resume),
            ("build_optimizer", self._around_build),
            ("_load_checkpoint_state", self._around_load),
        ):
            if hasattr(trainer_class, name):
                wrap_method(trainer_class, name, around)

    def apply(self, user_settings):
        """Return the user's settings with the overrides applied."""
        return dict(user_settings or {}, **self.get_supported())

    def get_supported(self):
        """Return the overrides that this version of Ultralytics knows and accepts; note the others."""
        if self._supported is None:
            from ultralytics.cfg import DEFAULT_CFG_DICT, check_cfg

            self._supported = {}
            for name, value in self._requested.items():
                why = _why_unsupported(name, value, DEFAULT_CFG_DICT, check_cfg)
                if why is None:
                    self._supported[name] = value
                else:
                    self._callbacks.note("setting override ignored: %s" % name, why)
        return self._supported

    def _is_refused(self, name):
        if name in NOT_OVERRIDABLE:
            self._callbacks.note("setting override ignored: %s" % name, "it identifies the training")
        return name in NOT_OVERRIDABLE

    # --- a new training ------------------------------------------------------------------------------------------

    def _around_train(self, original, model, args, kwargs):
        with self._callbacks.report_errors("setting overrides"):
            kwargs = self.apply(kwargs)
        return original(model, *args, **kwargs)

    def _around_build(self, original, trainer, args, kwargs):
        """Apply an overridden learning rate: `optimizer=auto` would choose its own."""
        optimizer = original(trainer, *args, **kwargs)
        with self._callbacks.report_errors("the learning rate"):
            overrides = {
                name: self.get_supported()[name] for name in ("lr0", "momentum") if name in self.get_supported()
            }
            chosen = trainer.args.optimizer
            if overrides and str(kwargs.get("name")).lower() == "auto" and str(chosen).lower() != "auto":
                trainer.args.lr0 = overrides.get("lr0", trainer.args.lr0)
                changes = {
                    "name": chosen,
                    "lr": trainer.args.lr0,
                    "momentum": overrides.get("momentum", AUTO_MOMENTUM),
                }
                optimizer = original(trainer, *args, **dict(kwargs, **changes))
        return optimizer

    # --- resuming from last.pt -----------------------------------------------------------------------------------

    def _around_check_resume(self, original, trainer, args, kwargs):
        """check_resume(overrides): hide the overrides from it, because it reports which settings it ignores."""
        with self._callbacks.report_errors("setting overrides"):
            if args:
                args = ({name: value for name, value in args[0].items() if name not in self.get_supported()}, *args[1:])
        result = original(trainer, *args, **kwargs)
        with self._callbacks.report_errors("setting overrides"):
            if trainer.resume:
                for name, value in self.get_supported().items():
                    if name not in FROM_CHECKPOINT:
                        setattr(trainer.args, name, value)
        return result

    def _around_load(self, original, trainer, args, kwargs):
        """_load_checkpoint_state(ckpt): keep overridden rates, because the saved optimizer has the old ones."""
        own_options = None
        with self._callbacks.report_errors("learning rate overrides"):
            then = args[0].get("train_args") or {}
            changed = [
                name
                for name in RATE_SETTINGS
                if name in self.get_supported() and then.get(name) != self.get_supported()[name]
            ]
            if changed:
                own_options = [
                    {k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups
                ]
            if "optimizer" in changed and str(then.get("optimizer")).lower() != str(trainer.args.optimizer).lower():
                args = (dict(args[0], optimizer=None), *args[1:])
        result = original(trainer, *args, **kwargs)
        for group, options in zip(trainer.optimizer.param_groups, own_options or ()):
            group.update(options)
        return result


class SettingsReporter(object):
    """Reports the settings. It is called after all other followers: it is the first sign that this process trains."""

    def __init__(self, probe):
        self._probe = probe

    def _on_train_start(self, trainer):
        self._probe.claim(SOURCE)
        self._probe.emit("settings", source=SOURCE, values=get_settings(trainer))


def get_settings(trainer):
    """Return the settings that the training uses when it begins."""
    values = {name: _to_plain(value) for name, value in vars(trainer.args).items()}
    values.update(
        batch=trainer.batch_size,
        accumulate=trainer.accumulate,
        device=str(trainer.device),
        epochs=trainer.epochs,
        amp=bool(trainer.amp),
        save_dir=str(trainer.save_dir),
    )
    if str(values.get("optimizer")).lower() == "auto":
        values["optimizer"] = type(trainer.optimizer).__name__
    return values


def _to_plain(value):
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def _why_unsupported(name, value, defaults, check):
    """Return why Ultralytics would not accept this setting, or None."""
    if name not in defaults:
        return "this version of ultralytics does not know it"
    try:
        check({name: value})
    except Exception as error:
        return str(error)[:300]
    return None
