"""Types and bounds for the values of plan keys and framework settings."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["whole", "number", "bool", "text", "list", "texts", "table", "tables"]


class Value(NamedTuple):
    """A value of any of `kinds`. Numbers must be within the bounds, strings one of the choices, if there are any."""

    kinds: tuple[Kind, ...]
    default: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
