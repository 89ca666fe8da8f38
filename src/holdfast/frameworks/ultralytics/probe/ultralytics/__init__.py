"""Ultralytics: what its trainer knows and torch does not, and resuming after a crash with the same command.

callbacks            loss components, labelled objects, epochs, metrics, checkpoints
exact_resume         snapshots of the whole training between any two batches, and exact resuming from them
  supported_versions   the versions whose internals this was tested with
  fingerprint          whether a snapshot belongs to this training, and what has changed since
  trainer_state        the state of a trainer
  loader               its infinite loader, its workers and their mosaic buffers
  loop_frame           its training loop while it runs
  last_pt              copies of last.pt, which Ultralytics goes back to after a NaN
resume_last_pt       resuming from its own last.pt if there is no snapshot: after the last saved epoch, not exactly
overrides            changes to what the command requests, read from the supervisor
  settings             setting overrides, and the settings that are really used
  validation           validation every n epochs, with another batch size, with fewer boxes
  rng_parity           the random numbers that a skipped validation would have drawn
  best_metric          best.pt by mAP50, F1 or F2
  empty_cache          returning the free memory of the device from time to time
  assigner             matching boxes on the CPU
dry_run              no trackers, no label cache, loaders that never end
validate_on_cpu      a program that validates a checkpoint again
"""

import os

from ... import protocol
from ...import_hooks import after_import
from .callbacks import Callbacks
from .dry_run import begin_dry_run, override_loaders
from .exact_resume import ExactResume
from .overrides import Overrides, read_overrides
from .resume_last_pt import Resume
from .settings import SettingsReporter

__all__ = ["begin_dry_run", "install", "override_loaders"]


def install(probe):
    callbacks = Callbacks(probe)
    after_import("ultralytics.engine.trainer", callbacks.watch)
    if os.environ.get(protocol.OBSERVE_ONLY) != "1":
        _install_changes(probe, callbacks)
    callbacks.followers.append(SettingsReporter(probe))


def _install_changes(probe, callbacks):
    requested = read_overrides(callbacks.note)
    exact = ExactResume(probe, callbacks, requested.get("validation"))
    callbacks.followers.append(exact)
    after_import("ultralytics.engine.trainer", exact.watch)
    resume_mode, checkpoint = os.environ.get(protocol.RESUME), os.environ.get(protocol.CHECKPOINT)
    if resume_mode == "snapshot":
        checkpoint = os.environ.get(protocol.FALLBACK)
    if resume_mode in ("snapshot", "framework") and checkpoint:
        resume = Resume(probe.torch, checkpoint, callbacks.note, probe.set_fresh_start, exact.can_resume)
        after_import("ultralytics.engine.model", resume.watch)
    overrides = Overrides(probe, callbacks, requested)
    after_import("ultralytics.engine.trainer", overrides.watch)
    after_import("ultralytics.engine.model", overrides.watch_model)
