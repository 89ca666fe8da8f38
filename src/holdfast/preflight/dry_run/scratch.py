"""A scratch copy of a working folder: what a training may write to is copied, what is large is only linked.

Files up to 32 MB are copied, up to 256 MB and 5,000 of them in all; larger ones, folders with more than 500 entries, virtual
environments, repositories and what by its name holds secrets are links to the originals, which the dry run is kept from writing to. The folders above are
there too, as links, so that `../data` leads where it did.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from holdfast.process.helper_processes import PREFIX
from holdfast.storage.reflink import clone

FILE_BYTES = 32 << 20
ALL_BYTES = 256 << 20
MAX_FILES = 5000
MAX_ENTRIES = 500
"""Of one folder: what has more holds data, not work."""
CLONED_FROM = 1 << 20
LINKED = frozenset((".git", ".hg", ".svn", ".venv", "venv", "env", "node_modules", "site-packages", ".tox"))
SECRET = (
    *(".env", ".env.*", "*.env", ".netrc", ".pypirc", ".npmrc", ".git-credentials", "*.pem", "*.key", "*.p12", "*.pfx"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "kaggle.json", "*credentials*", "*secret*", "*token*"),
    *(".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh"),
)
"""Files and folders whose names say that they hold secrets: linked, so that no copy of them can be left behind."""
LEFT_OUT = frozenset(("__pycache__", ".holdfast", ".mypy_cache", ".ruff_cache", ".pytest_cache"))
MAX_WATCHED = 20_000
MAX_SIBLINGS = 2000


@dataclass
class Scratch:
    original: Path
    folder: Path
    """The copy of it."""
    copied: int = 0
    bytes: int = 0
    linked: list[str] = field(default_factory=list)
    """Relative to the working folder; a folder ends with a slash."""

    def inside(self, word: str) -> str:
        """A word of a command, with paths in the original folder leading into the copy."""
        name, equals, value = word.partition("=")
        before, path = (f"{name}=", value) if equals else ("", word)
        original = str(self.original)
        if path != original and not path.startswith(original + os.sep):
            return word
        return f"{before}{self.folder}{path[len(original) :]}"


def make(original: Path, root: Path) -> Scratch:
    """Copies `original` to a place under `root` (an empty folder)."""
    original = original.resolve()
    folder = root.joinpath(*original.parts[1:])
    folder.mkdir(parents=True)
    _link_around(original, root)
    scratch = Scratch(original, folder)
    waiting = [original]
    while waiting:
        waiting += _copy_folder(waiting.pop(0), scratch)
    return scratch


def _copy_folder(source: Path, scratch: Scratch) -> list[Path]:
    """Returns the folders in it that are to be copied too."""
    further = []
    target = scratch.folder / source.relative_to(scratch.original)
    for entry in _entries(source):
        goal, path = target / entry.name, Path(entry.path)
        with contextlib.suppress(OSError):  # a file that went away meanwhile, or that may not be read
            if entry.is_symlink():
                goal.symlink_to(path.resolve())
            elif entry.is_dir():
                if _is_left_out(entry.name):
                    continue
                if _is_copied(path):
                    goal.mkdir()
                    further.append(path)
                else:
                    _link(path, goal, scratch, "/")
            elif entry.is_file():
                _copy_file(entry, goal, scratch)
    return further


def _copy_file(entry: os.DirEntry[str], goal: Path, scratch: Scratch) -> None:
    path, size = Path(entry.path), entry.stat().st_size
    full = size > FILE_BYTES or scratch.bytes + size > ALL_BYTES or scratch.copied >= MAX_FILES
    if full or _is_secret(entry.name):
        _link(path, goal, scratch)
        return
    if size < CLONED_FROM or not clone(path, goal):
        shutil.copyfile(path, goal)
    shutil.copystat(path, goal)
    scratch.copied += 1
    scratch.bytes += size


def _is_copied(folder: Path) -> bool:
    if folder.name in LINKED or _is_secret(folder.name) or (folder / "pyvenv.cfg").is_file():
        return False
    with os.scandir(folder) as entries:
        return sum(1 for _ in zip(entries, range(MAX_ENTRIES + 1), strict=False)) <= MAX_ENTRIES


def _is_left_out(name: str) -> bool:
    """Scratch folders too, ours and others': TMPDIR may lie in the working folder, and a copy must not hold itself."""
    return name in LEFT_OUT or name.startswith(PREFIX)


def _is_secret(name: str) -> bool:
    lower = name.lower()
    # A module or a tokenizer is none, whatever it is about.
    return (
        not lower.endswith((".py", ".model"))
        and not lower.startswith("tokenizer")
        and any(fnmatch(lower, pattern) for pattern in SECRET)
    )


def _link(path: Path, goal: Path, scratch: Scratch, ending: str = "") -> None:
    goal.symlink_to(path)
    scratch.linked.append(str(path.relative_to(scratch.original)) + ending)


def _link_around(original: Path, root: Path) -> None:
    """What lies beside the folder and beside those above it."""
    below = original
    for above in original.parents:
        if above == above.parent:
            return  # nobody writes ../../../etc
        for entry in _entries(above)[:MAX_SIBLINGS]:
            if entry.name != below.name:
                with contextlib.suppress(OSError):
                    root.joinpath(*above.parts[1:], entry.name).symlink_to(entry.path)
        below = above


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: (entry.name.startswith("."), entry.name))
    except OSError:
        return []


# --- what of the original changed all the same --------------------------------------------------------------------------


def times(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Of each file: when it was changed, its size and its mode. Files of a folder before those below it, up to 20,000."""
    found: dict[str, tuple[int, int, int]] = {}
    waiting = [str(folder)]
    while waiting and len(found) < MAX_WATCHED:
        for entry in _entries(Path(waiting.pop(0))):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in LINKED and not _is_left_out(entry.name):
                        waiting.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (status.st_mtime_ns, status.st_size, status.st_mode)
    return found


def changed(before: dict[str, tuple[int, int, int]], after: dict[str, tuple[int, int, int]]) -> list[str]:
    if len(before) >= MAX_WATCHED:
        return sorted(path for path in before if path in after and before[path] != after[path])
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
