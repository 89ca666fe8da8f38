"""What a key of a plan, or a setting of a framework, may hold."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["whole", "number", "bool", "text", "list", "texts", "table", "tables"]


class Value(NamedTuple):
    """Any of `kinds`; numbers within the bounds, texts among the choices where there are some."""

    kinds: tuple[Kind, ...]
    default: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
