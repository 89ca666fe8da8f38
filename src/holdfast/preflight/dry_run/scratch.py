"""A scratch copy of a working folder: files that a training may write to are copied, large files are only linked.

Files up to 32 MB are copied, up to 256 MB and 5,000 files in total. Larger files, folders with more than 500 entries, virtual
environments, repositories and files whose name suggests secrets are links to the originals; the dry run is prevented from writing to them.
Siblings of the folder and of its parents are linked too, so that `../data` still works.
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

MAX_FILE_BYTES = 32 << 20
MAX_TOTAL_BYTES = 256 << 20
MAX_FILES = 5000
MAX_ENTRIES = 500
"""A folder with more entries contains data, not work."""
MIN_CLONE_BYTES = 1 << 20
LINKED_FOLDERS = frozenset((".git", ".hg", ".svn", ".venv", "venv", "env", "node_modules", "site-packages", ".tox"))
SECRET_PATTERNS = (
    *(".env", ".env.*", "*.env", ".netrc", ".pypirc", ".npmrc", ".git-credentials", "*.pem", "*.key", "*.p12", "*.pfx"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "kaggle.json", "*credentials*", "*secret*", "*token*"),
    *(".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh"),
)
"""Files and folders whose name suggests secrets. They are linked, so that no copy of them can be left behind."""
SKIPPED_FOLDERS = frozenset(("__pycache__", ".holdfast", ".mypy_cache", ".ruff_cache", ".pytest_cache"))
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

    def redirect(self, word: str) -> str:
        """Return a word of a command, with a path in the original folder replaced by the path in the copy."""
        name, equals, value = word.partition("=")
        before, path = (f"{name}=", value) if equals else ("", word)
        original = str(self.original)
        if path != original and not path.startswith(original + os.sep):
            return word
        return f"{before}{self.folder}{path[len(original) :]}"


def make(original: Path, root: Path) -> Scratch:
    """Copy `original` to a folder under `root`, which must be empty."""
    original = original.resolve()
    folder = root.joinpath(*original.parts[1:])
    folder.mkdir(parents=True)
    _link_around(original, root)
    scratch = Scratch(original, folder)
    queue = [original]
    while queue:
        queue += _copy_folder(queue.pop(0), scratch)
    return scratch


def _copy_folder(source: Path, scratch: Scratch) -> list[Path]:
    """Copy the files of a folder and return its subfolders that must be copied too."""
    subfolders = []
    target = scratch.folder / source.relative_to(scratch.original)
    for entry in _entries(source):
        destination, path = target / entry.name, Path(entry.path)
        with contextlib.suppress(OSError):  # a file that was deleted meanwhile or is not readable
            if entry.is_symlink():
                destination.symlink_to(path.resolve())
            elif entry.is_dir():
                if _is_skipped(entry.name):
                    continue
                if _is_copied(path):
                    destination.mkdir()
                    subfolders.append(path)
                else:
                    _link(path, destination, scratch, "/")
            elif entry.is_file():
                _copy_file(entry, destination, scratch)
    return subfolders


def _copy_file(entry: os.DirEntry[str], destination: Path, scratch: Scratch) -> None:
    path, size = Path(entry.path), entry.stat().st_size
    is_over_limit = size > MAX_FILE_BYTES or scratch.bytes + size > MAX_TOTAL_BYTES or scratch.copied >= MAX_FILES
    if is_over_limit or _is_secret(entry.name):
        _link(path, destination, scratch)
        return
    if size < MIN_CLONE_BYTES or not clone(path, destination):
        shutil.copyfile(path, destination)
    shutil.copystat(path, destination)
    scratch.copied += 1
    scratch.bytes += size


def _is_copied(folder: Path) -> bool:
    if folder.name in LINKED_FOLDERS or _is_secret(folder.name) or (folder / "pyvenv.cfg").is_file():
        return False
    with os.scandir(folder) as entries:
        return sum(1 for _ in zip(entries, range(MAX_ENTRIES + 1), strict=False)) <= MAX_ENTRIES


def _is_skipped(name: str) -> bool:
    """Return whether to skip a folder. Scratch folders are skipped too: TMPDIR may be in the working folder, and a copy must not contain
    itself.
    """
    return name in SKIPPED_FOLDERS or name.startswith(PREFIX)


def _is_secret(name: str) -> bool:
    lower = name.lower()
    # A Python module or a tokenizer is never a secret, regardless of its name.
    return (
        not lower.endswith((".py", ".model"))
        and not lower.startswith("tokenizer")
        and any(fnmatch(lower, pattern) for pattern in SECRET_PATTERNS)
    )


def _link(path: Path, destination: Path, scratch: Scratch, ending: str = "") -> None:
    destination.symlink_to(path)
    scratch.linked.append(str(path.relative_to(scratch.original)) + ending)


def _link_around(original: Path, root: Path) -> None:
    """Link the siblings of the folder and of its parents."""
    below = original
    for above in original.parents:
        if above == above.parent:
            return  # nobody uses ../../../etc
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


# --- changes of the original ----------------------------------------------------------------------------------------------


def stat_files(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return the modification time, size and mode of each file, breadth first, up to 20,000 files."""
    found: dict[str, tuple[int, int, int]] = {}
    queue = [str(folder)]
    while queue and len(found) < MAX_WATCHED:
        for entry in _entries(Path(queue.pop(0))):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in LINKED_FOLDERS and not _is_skipped(entry.name):
                        queue.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (status.st_mtime_ns, status.st_size, status.st_mode)
    return found


def find_changed(before: dict[str, tuple[int, int, int]], after: dict[str, tuple[int, int, int]]) -> list[str]:
    if len(before) >= MAX_WATCHED:
        return sorted(path for path in before if path in after and before[path] != after[path])
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
