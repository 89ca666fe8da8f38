"""Holdfast: training runs that finish and prove that they learned."""

from __future__ import annotations

import sys as _sys
import typing as _typing

if _typing.TYPE_CHECKING:
    from holdfast.probe.holdfast_probe.guard import guard as guard

__version__ = "0.1.0"


def __getattr__(name: str) -> _typing.Any:
    """Import `holdfast.guard` on first use: it needs torch, which the supervisor does not."""
    if name != "guard":
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    if "holdfast_probe" in _sys.modules:  # in a supervised training, which has the probe on its path
        from holdfast_probe.guard import guard  # noqa: PLC0415
    else:
        from holdfast.probe.holdfast_probe.guard import guard  # noqa: PLC0415
    return guard
