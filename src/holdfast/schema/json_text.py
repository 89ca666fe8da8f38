"""JSON that is safe for every parser and every terminal."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.probe.holdfast_probe.redact import readable

UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Control characters that JSON does not escape, and characters that are invisible or change the text direction."""


def to_json(value: Any) -> str:
    """Encode in one line. Replace undecodable bytes by U+FFFD, and escape characters that a terminal may interpret."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", to_bytes(value).decode())


def to_bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, from a file name that is not valid text
        return msgspec.json.encode(_make_readable(msgspec.to_builtins(value)))


def _make_readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {_make_readable(name): _make_readable(item) for name, item in value.items()}
    return [_make_readable(item) for item in value] if isinstance(value, (list, tuple)) else value
