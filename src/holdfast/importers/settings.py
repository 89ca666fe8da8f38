"""Settings as `key: value` lines, as `args.yaml` and `hparams.yaml` have them. Not YAML: what is nested or long is passed
over, which is enough to learn how much was planned, and where.
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
_NOT_OF_ULTRALYTICS = {
    "val_period": "Ultralytics raises on it (ultralytics#17412, ultralytics#23715); validating every n epochs has to be "
    "done from outside, by a callback that sets trainer.args.val",
    "val_interval": "Ultralytics raises on it; it validates after every epoch or, with val=False, after the last",
    "val_batch": "Ultralytics raises on it; validation uses twice the training's batch",
    "accumulate": "Ultralytics raises on it; it accumulates gradients by itself up to nbs=64",
    "gradient_accumulation": "Ultralytics raises on it; it accumulates gradients by itself up to nbs=64",
    "accumulation_steps": "Ultralytics raises on it; it accumulates gradients by itself up to nbs=64",
}
"""Names that are often taken for arguments of Ultralytics."""


def read_settings(path: Path, notes: list[str]) -> Settings:
    """Empty where there are none, or none that can be read: that is said in the notes, and keeps nothing else from being read."""
    if not path.is_file():
        return {}
    try:
        return settings_in(read_source(path).head)
    except RecordUnknown as error:
        notes.append(error.what)
        return {}


def settings_in(text: str) -> Settings:
    """Keys of any depth with their plain values; of a key that comes twice the first counts."""
    found: Settings = {}
    for line in text.splitlines()[:MAX_LINES]:
        match = _LINE.match(line) if len(line) < 2000 else None
        if match:
            value = re.sub(r"\s+#.*$", "", match[2] or "").strip().strip("\"'")
            found.setdefault(match[1], value)
    return found


def looks_like_settings(text: str) -> bool:
    """Nearly every line is a key, a list item or a comment."""
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    fitting = [line for line in lines if _LINE.match(line[:2000]) or line.lstrip().startswith(("#", "- ", "---"))]
    return len(lines) >= 2 and len(fitting) >= 0.9 * len(lines)


def not_of_ultralytics(settings: Settings) -> list[str]:
    """A sentence for each name that Ultralytics does not know."""
    return [
        f"{name} is no argument of Ultralytics: {why}." for name, why in _NOT_OF_ULTRALYTICS.items() if name in settings
    ]
