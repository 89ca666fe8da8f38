"""Valid ranges for the numbers in a journal. A line with a number out of range is not an event of Holdfast.

Without these bounds, a modified journal could bring a time of 1e308 or a process ID of 2**40 into calculations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""A time in seconds since 1970, up to the year 5138."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]
"""A duration. It is negative if the clock was set back."""
Pid = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=10**15)]
"""Steps, epochs, attempts, ranks and other counts; -1 means none."""
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Bytes, and other integers."""
