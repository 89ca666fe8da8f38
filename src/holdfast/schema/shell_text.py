"""Words as they have to be typed into a shell: every command that Holdfast proposes is put together here.

A name may hold anything that a file name may: `;`, `$(...)`, a line break. Somebody copies the proposed command and presses Enter.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.schema.json_text import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Iterable


def shell_quoted(word: object) -> str:
    """One word for bash, zsh and ksh, without a character that a terminal would act on or that is left out when it is shown."""
    text = os.fspath(word) if isinstance(word, os.PathLike) else str(word)
    if text.isprintable() and not UNSAFE.search(text):
        return shlex.quote(text)
    return "$'" + "".join(_escaped(character) for character in text) + "'"


def shell_joined(words: Iterable[object]) -> str:
    return " ".join(shell_quoted(word) for word in words)


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable() and not UNSAFE.search(character):
        return character
    # Three digits each: what follows is never taken for a part of the number. A surrogate that stands for no byte becomes "?".
    data = character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace")
    return "".join(f"\\{byte:03o}" for byte in data)
