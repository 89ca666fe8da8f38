"""Another user's files, for tests: really theirs where the test runs as root, and taken for theirs elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.storage import owners

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STRANGER = 54321
NAME = f"uid {STRANGER}"


class Stranger:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._owned: set[Path] = set()
        monkeypatch.delenv("SUDO_UID", raising=False)
        if os.geteuid():
            real = owners.untrusted_owner
            monkeypatch.setattr(owners, "untrusted_owner", lambda path: NAME if path in self._owned else real(path))

    def owns(self, path: Path) -> Path:
        """From now on this one path is theirs, not what is in it."""
        self._owned.add(path)
        if not os.geteuid():
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        return path
