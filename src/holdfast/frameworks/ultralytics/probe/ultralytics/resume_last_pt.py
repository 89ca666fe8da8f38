"""Resuming from an Ultralytics last.pt without a change to the user's command.

The first `Model.train` call that the checkpoint belongs to gets `resume=<checkpoint>`, which works for scripts and for
the `yolo` command alike. Ultralytics raises if the checkpoint is finished or from another training, so that is checked
first; then the training starts as the user requested.
"""

import functools
import os

from ... import protocol

NOT_RESUMED = "the training starts over instead of resuming from its checkpoint"


class Resume(object):
    def __init__(self, torch, checkpoint, note, starts_over, fallback):
        """`fallback(overrides)` returns whether the training resumes from something better."""
        self._torch = torch
        self._fallback = fallback
        self._checkpoint = checkpoint
        self._note = note
        self._starts_over = starts_over
        self._is_pending = True

    def watch(self, module):
        """Wrap `Model.train` when `ultralytics.engine.model` is imported."""
        model = getattr(module, "Model", None)
        original = getattr(model, "train", None)
        if original is None:
            self._refuse("this version of ultralytics has no Model.train")
            return

        @functools.wraps(original)
        def train(*args, **kwargs):
            # The first positional argument is the model object; the `yolo` command also passes a setting named `model`.
            if self._is_pending:
                try:
                    if not self._fallback(kwargs):
                        self._set_resume(kwargs)
                except Exception as error:
                    self._refuse("%s: %s" % (type(error).__name__, str(error)[:300]))
            return original(*args, **kwargs)

        model.train = train

    def _refuse(self, why):
        """Let the training start as the user requested, from step 0."""
        self._is_pending = False
        self._note(NOT_RESUMED, why)
        self._starts_over()

    def _set_resume(self, kwargs):
        if not self._checkpoint or not os.path.exists(self._checkpoint):
            self._refuse("the file %s does not exist" % self._checkpoint)
            return
        saved = self._torch.load(self._checkpoint, map_location="cpu", weights_only=False)
        reason = why_not_resumable(saved)
        if reason is not None:
            self._refuse("%s: %s" % (self._checkpoint, reason))
            return
        difference = why_other_training(saved["train_args"], kwargs)
        if difference is not None:
            self._note("the checkpoint does not belong to this call of Model.train", difference)
            return
        self._is_pending = False
        os.environ.pop(protocol.RESUME, None)  # processes started by this one must not resume from it again
        kwargs["resume"] = self._checkpoint
        self._note("ultralytics resumes from its checkpoint", "%s, epoch %d" % (self._checkpoint, saved["epoch"] + 1))


def why_not_resumable(saved):
    """Return why Ultralytics cannot resume from this checkpoint, or None."""
    if not isinstance(saved, dict) or not isinstance(saved.get("train_args"), dict):
        return "not a training checkpoint of ultralytics"
    if saved.get("optimizer") is None or saved.get("epoch", -1) < 0:
        return "its optimizer state was stripped, as at the end of a training"
    epochs = saved["train_args"].get("epochs")
    if epochs is not None and saved["epoch"] + 1 >= epochs:
        return "all of its %s epochs are done" % epochs
    if saved.get("ema") is None and saved.get("model") is None:
        return "it contains no model"
    return None


def why_other_training(saved, requested):
    """Return why the checkpoint belongs to another training than the requested one, or None. Settings that may change
    between attempts (batch, image size, device, ...) are not compared.
    """
    if isinstance(requested.get("data"), (list, tuple)):
        return "it trains on several datasets"
    for name in ("epochs", "task"):
        if requested.get(name) is not None and saved.get(name) is not None and str(requested[name]) != str(saved[name]):
            return "%s is %s in the checkpoint and %s now" % (name, saved[name], requested[name])
    data, saved_data = requested.get("data"), saved.get("data")
    if data and saved_data and _stem(data) != _stem(saved_data):
        return "data is %s in the checkpoint and %s now" % (saved_data, data)
    name, saved_name = requested.get("name"), saved.get("name")
    if name and saved_name and not str(saved_name).startswith(str(name)):
        return "name is %s in the checkpoint and %s now" % (saved_name, name)
    return None


def _stem(path):
    return os.path.splitext(os.path.basename(str(path)))[0]
