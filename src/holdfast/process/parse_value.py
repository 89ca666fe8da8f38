"""Values on a command line, as a user writes them: `true`, `none`, `16`, `0.5`, `ram`."""

from __future__ import annotations

from typing import Any


def parse_value(text: str) -> Any:
    lower = text.strip().lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
