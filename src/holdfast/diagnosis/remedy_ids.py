"""Sequences of remedy ids that several rules share. A rule names its remedies by id; the steps are in `holdfast.remedies`."""

from __future__ import annotations

ENDED_IN_VALIDATION = "ended-in-validation"
PEAK_IN_VALIDATION = "peak-in-validation"
"""Conditions. `STEP@CONDITION` is a step that is skipped if its condition does not hold (see `remedies/registry.py`)."""

LIGHTER_VALIDATION = ("validation-batch", "validation-boxes", "validation-less-often")
DIED_IN_VALIDATION = tuple(f"{step}@{ENDED_IN_VALIDATION}" for step in LIGHTER_VALIDATION)
LESS_AT_PEAK = (f"validation-batch@{PEAK_IN_VALIDATION}",)
LESS_MEMORY = ("micro-batch", "less-mixup", "less-mosaic", "smaller-image", "batch-of-one", "next-device")
LESS_CACHED = ("nothing-extra", "fewer-workers", "clear-cache", *LESS_AT_PEAK)
HOST_MEMORY = (*DIED_IN_VALIDATION, "fresh-process", *LESS_CACHED, *LESS_MEMORY)
SWAPPING = ("fixed-shapes", *LESS_CACHED, *LESS_MEMORY)
"""A training that is still running is not restarted only to get a new process."""
NOT_FINITE = ("as-it-is", "full-precision", "next-device", "half-rate")
