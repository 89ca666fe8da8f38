"""Settings as `key: value` lines, as in `hparams.yaml`. This is not a YAML parser: nested and long values are
skipped. That is enough to learn how much was planned, and on which device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.importers.text import read_source
from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from pathlib import Path

Settings = dict[str, str]
MAX_LINES = 5000
_LINE = re.compile(r"""^\s*["']?([A-Za-z_][\w.\-/ ]{0,80}?)["']?\s*:(?:\s+(.*?))?\s*$""")


def read_settings(path: Path, notes: list[str]) -> Settings:
    """Read settings. Return an empty dict if there are none or they cannot be read; the notes then say why."""
    if not path.is_file():
        return {}
    try:
        return parse_settings(read_source(path).head)
    except RecordUnknown as error:
        notes.append(error.what)
        return {}


def parse_settings(text: str) -> Settings:
    """Return keys of any depth with their plain values. The first of duplicate keys counts."""
    found: Settings = {}
    for line in text.splitlines()[:MAX_LINES]:
        match = _LINE.match(line) if len(line) < 2000 else None
        if match:
            value = re.sub(r"\s+#.*$", "", match[2] or "").strip().strip("\"'")
            found.setdefault(match[1], value)
    return found


def looks_like_settings(text: str) -> bool:
    """Check whether nearly every line is a key, a list item or a comment."""
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    fitting = [line for line in lines if _LINE.match(line[:2000]) or line.lstrip().startswith(("#", "- ", "---"))]
    return len(lines) >= 2 and len(fitting) >= 0.9 * len(lines)
