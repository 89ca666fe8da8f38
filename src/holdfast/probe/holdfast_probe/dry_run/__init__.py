"""The dry run: the first steps of a training, monitored closely, then a few experiments, then the process exits.

The supervisor starts the user's command in a scratch copy of its folder, with `HOLDFAST_CHECK` set to

    {"files": {"scratch": ["/tmp/x"], "caches": ["/home/x/.cache"], "writable": ["/tmp/x", "/home/x/.cache", "/dev"]},
     "dry_run": {"steps": 3, "op_check_seconds": 20, "curve_steps": 24, "curve_seconds": 10, "seconds": 40}}

(This package passes `{"op_check": ..}` and `{"record": ..}` on to `op_check`.) Files in the attempt's folder:

    dry_run.jsonl   "file": a write outside the scratch folder, made or refused (write_guard.py)
                      "first-loss": the first loss and its theoretical value (initial_loss.py)
                      "dry-run-step": phase, step, loss, seconds
                      "experiments": whether there are any, and if not why; `drawn` if the random state reproduces a batch
                      "curve": one batch repeated (or with its inputs zeroed): rate, losses, tensors that changed
                      "canaries": the results for each device that was used
                      "dry-run-ended": why, steps, seconds
    op_check.jsonl      for the first steps: see `op_check`
    rank-0.jsonl      what the probe reports of any training

runner              the order of the dry run
overfit_one_batch   one experiment
loader_override     what loaders yield: their own batches, the first batch repeated, or that batch with its inputs zeroed
batches             copies of a batch
state               weights, optimizer and random state from before the first step
initial_loss        the expected first loss
write_guard         keeps the user's files unchanged
"""

import json
import os
import sys

from .. import protocol

FILE = "dry_run.jsonl"
_config = {}  # type: ignore[var-annotated]
_overrides = []  # type: ignore[var-annotated]


def begin():
    """Start the dry run. Called in every Python process of it, before any of the user's code runs."""
    try:
        _config.update(json.loads(os.environ.get(protocol.CHECK) or "{}"))
        if _config.get("files") is not None:
            from .. import frameworks
            from . import write_guard

            write_guard.install(os.path.join(os.environ[protocol.ATTEMPT_DIR], FILE), **_config["files"])
            frameworks.call("begin_dry_run")
    except Exception as error:
        sys.stderr.write("holdfast: the value of %s is invalid: %s\n" % (protocol.CHECK, error))


def before_probe(torch):
    """Prepare the dry run before the probe is installed, so that the probe sees overridden batches like any others."""
    try:
        if _config.get("files") is not None:
            from . import write_guard

            write_guard.guard_torch_save(torch)
        if _config.get("dry_run") is not None:
            from .. import frameworks
            from .loader_override import LoaderOverride

            _overrides.append(LoaderOverride(torch))
            _overrides[0].install()
            frameworks.call("override_loaders", _overrides[0])
    except Exception as error:
        sys.stderr.write("holdfast: the dry run cannot be prepared: %s\n" % error)


def from_environment(torch, probe):
    """Start what `HOLDFAST_CHECK` requests. Called after the probe is installed."""
    if _config.get("dry_run") is None:
        from .. import op_check

        op_check.from_environment(torch, probe)
        return
    try:
        from .runner import DryRun

        DryRun(torch, probe, _overrides[0], **_config["dry_run"]).start()
    except Exception as error:
        sys.stderr.write("holdfast: the dry run cannot be started: %s\n" % error)
