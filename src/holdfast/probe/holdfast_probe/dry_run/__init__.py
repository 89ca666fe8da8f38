"""The dry run: a training's own first steps, watched closely, then a few experiments on them, and the process ends.

The seam. The supervisor starts the user's command in a scratch copy of its folder, with `HOLDFAST_CHECK` set to

    {"files": {"scratch": ["/tmp/x"], "caches": ["/home/x/.cache"], "writable": ["/tmp/x", "/home/x/.cache", "/dev"]},
     "dry_run": {"steps": 3, "op_check_seconds": 20, "curve_steps": 24, "curve_seconds": 10, "seconds": 40}}

(`{"op_check": ..}` and `{"record": ..}` are asked of `op_check`, which this package hands them on to.) In the attempt's folder:

    dry_run.jsonl   "file": what it wrote, or was kept from writing, outside of the scratch (files.py)
                      "first-loss": the first loss beside what theory says of it (theory.py)
                      "dry-run-step": phase, step, loss, seconds
                      "experiments": whether there are any, and if not why; `drawn` where random numbers give a batch again
                      "curve": one batch again and again (or with its inputs zeroed): rate, losses, tensors that moved
                      "canaries": of each device that was used
                      "dry-run-ended": why, steps, seconds
    op_check.jsonl      of the first steps: see `op_check`
    rank-0.jsonl      what the probe tells of any training

conducting  the order of it all
curve       one experiment
loading     what loaders yield: as it is, the first batch again, or that with its inputs zeroed
batches     copies of a batch
state       weights, optimizer and random numbers as they were before the first step
theory      what a first loss should be
files       the user's files stay as they are
trackers    experiment trackers that only know a setting, not a variable
"""

import json
import os
import sys

from .. import protocol

FILE = "dry_run.jsonl"
_asked = {}  # type: ignore[var-annotated]
_batches = []  # type: ignore[var-annotated]


def begin():
    """In every Python process of the dry run, before anything of the user's runs."""
    try:
        _asked.update(json.loads(os.environ.get(protocol.CHECK) or "{}"))
        if _asked.get("files") is not None:
            from . import trackers, write_guard

            write_guard.install(os.path.join(os.environ[protocol.ATTEMPT_DIR], FILE), **_asked["files"])
            trackers.switch_off()
    except Exception as error:
        sys.stderr.write("holdfast: %s cannot be followed: %s\n" % (protocol.CHECK, error))


def before_probe(torch):
    """The probe is not yet in its place: what loaders yield is to look real to the probe."""
    try:
        if _asked.get("files") is not None:
            from . import write_guard

            write_guard.keep_from_torch(torch)
        if _asked.get("dry_run") is not None:
            from .loader_override import LoaderOverride

            _batches.append(LoaderOverride(torch))
            _batches[0].install()
    except Exception as error:
        sys.stderr.write("holdfast: the dry run cannot be prepared: %s\n" % error)


def from_environment(torch, probe):
    """The probe is in its place."""
    if _asked.get("dry_run") is None:
        from .. import op_check

        op_check.from_environment(torch, probe)
        return
    try:
        from .runner import DryRun

        DryRun(torch, probe, _batches[0], **_asked["dry_run"]).start()
    except Exception as error:
        sys.stderr.write("holdfast: the dry run cannot be held: %s\n" % error)
