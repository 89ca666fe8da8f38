"""JSON that every reader and every terminal can take."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.probe.holdfast_probe.redact import readable

UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Control characters that JSON leaves as they are, and those that turn the direction of text or cannot be seen."""


def to_json(value: Any) -> str:
    """In one line. Bytes of a name that are no text become U+FFFD; what could act on a terminal is escaped."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", to_bytes(value).decode())


def to_bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a character in a name of somebody else's
        return msgspec.json.encode(_readable(msgspec.to_builtins(value)))


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {_readable(name): _readable(item) for name, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value
