"""Human-readable sizes and durations."""

from __future__ import annotations

GIB = float(1 << 30)
MIB = float(1 << 20)


def size(amount: float) -> str:
    if abs(amount) >= 0.995 * GIB:
        return f"{amount / GIB:.1f} GiB"
    return f"{amount / MIB:.0f} MiB" if abs(amount) >= 10 * MIB or not amount else f"{amount / MIB:.2f} MiB"


def duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s" if seconds >= 10.0 else f"{seconds:.1f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min" if seconds >= 600.0 else f"{seconds / 60.0:.1f} min"
    return f"{seconds / 3600.0:.1f} h"
