"""Ultralytics: what its trainer knows and torch does not, and going on after a death with no change to the user's command.

watcher     loss components, labelled objects, epochs, metrics, checkpoints
exact       snapshots of the whole training between any two batches, and going on from one: as if nothing had been
  tested      the versions whose inside that was tried on
  sameness    whether a training is the one that a snapshot is of, and what of it has changed
  state       what a trainer is made of
  loading     its endless loader, its workers and their mosaic buffers
  loop        its loop while it runs
  last        copies of last.pt, which Ultralytics goes back to after a NaN
checkpoint  going on from its own last.pt, where there is no snapshot: at the last epoch's end, and not exactly
wishes      what a training is to do otherwise than its command says, read from the supervisor
  settings    settings of its own from outside, and what it really runs with
  validation  every n epochs, in other batches, with fewer boxes
  drawing     what a validation that is left out would have drawn
  best        best.pt by mAP50, F1 or F2
  cache       the device's free memory given back now and then
  assigner    matching boxes on the CPU
"""

import os

from ... import protocol
from ...import_hooks import after_import
from .callbacks import SOURCE, Callbacks
from .exact_resume import ExactResume
from .overrides import Overrides, requested_overrides
from .resume_last_pt import Resume
from .settings import SettingsTold


def install(probe):
    watcher = Callbacks(probe)
    after_import("ultralytics.engine.trainer", watcher.watch)
    if os.environ.get(protocol.OBSERVE_ONLY) != "1":
        _install_what_acts(probe, watcher)
    watcher.followers.append(SettingsTold(probe))


def _install_what_acts(probe, watcher):
    asked = requested_overrides(watcher.note)
    exact = ExactResume(probe, watcher, asked.get("validation"))
    watcher.followers.append(exact)
    after_import("ultralytics.engine.trainer", exact.watch)
    how, checkpoint = os.environ.get(protocol.RESUME), os.environ.get(protocol.CHECKPOINT)
    if how == "snapshot":
        checkpoint = os.environ.get(protocol.FALLBACK)
    if how in ("snapshot", SOURCE) and checkpoint:
        resume = Resume(probe.torch, checkpoint, watcher.note, probe.set_fresh_start, exact.goes_on)
        after_import("ultralytics.engine.model", resume.watch)
    wishes = Overrides(probe, watcher, asked)
    after_import("ultralytics.engine.trainer", wishes.watch)
    after_import("ultralytics.engine.model", wishes.watch_model)
