"""Numbers as a record may hold them. What lies outside was not written by Holdfast, and the line that has it is no event.

Without these bounds a changed record reaches arithmetic with a time of 1e308 or a process of 2**40.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970, up to the year 5138."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]
"""A span of time; a clock that was set back makes it negative."""
Pid = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=10**15)]
"""Steps, epochs, attempts, ranks, and how many of something there are; -1 stands for none."""
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Bytes, and whole numbers of which nothing else is known."""
