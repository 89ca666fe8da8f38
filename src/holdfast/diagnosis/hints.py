"""Advice in the terms of the framework that a run uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.frameworks import find_framework

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState


def hint(state: RunState, *advice: str) -> str:
    """Return the framework's settings for this advice, as ` (cache=False)`; empty if there are none."""
    hints = find_framework(state.framework, state.attempt.started.command).hints
    settings = " ".join(hints[key] for key in advice if key in hints)
    return f" ({settings})" if settings else ""
