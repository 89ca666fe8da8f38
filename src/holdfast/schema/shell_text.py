"""Shell quoting for every command that Holdfast suggests.

A name may contain anything that a file name may: `;`, `$(...)`, a line break. Users copy the suggested command and
press Enter.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.schema.json_text import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Iterable


def shell_quote(word: object) -> str:
    """Quote one word for bash, zsh and ksh. Escape characters that are invisible or that a terminal would interpret."""
    text = os.fspath(word) if isinstance(word, os.PathLike) else str(word)
    if text.isprintable() and not UNSAFE.search(text):
        return shlex.quote(text)
    return "$'" + "".join(_escape(character) for character in text) + "'"


def shell_join(words: Iterable[object]) -> str:
    return " ".join(shell_quote(word) for word in words)


def _escape(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable() and not UNSAFE.search(character):
        return character
    # Three digits each, so that a following digit is not read as part of the number. A surrogate without a byte becomes "?".
    data = character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace")
    return "".join(f"\\{byte:03o}" for byte in data)
