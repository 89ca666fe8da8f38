"""Human-readable sizes and durations."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20


def size(amount: float) -> str:
    if abs(amount) >= 0.995 * GIB:
        return f"{amount / GIB:.1f} GiB"
    return f"{amount / MIB:.0f} MiB" if abs(amount) >= 10 * MIB or not amount else f"{amount / MIB:.2f} MiB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
