"""Writes a proposed split: two lists of images, and a data YAML file that uses them. Existing files are never overwritten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.schema.errors import FolderNotWritable
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.folder import write_new
from holdfast.storage.safe_files import read_bytes
from holdfast.storage.safe_yaml import MAX_BYTES, load_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.diagnosis.dataset.splitting import Split
    from holdfast.frameworks.ultralytics.data_set import DataSet

YAML = "data.yaml"


def write(split: Split, folder: Path, data: DataSet) -> str:
    """Write the split and return how to use it. Raises FolderNotWritable before anything is written."""
    lists = {"train": split.train, "val": split.val}
    if "test" in data.splits:
        lists["test"] = tuple(str(path.absolute()) for path in data.splits["test"])
    files = {f"{name}.txt": _list(paths) for name, paths in lists.items()}
    files[YAML] = _yaml(data, folder, list(lists))
    existing = [name for name in files if os.path.lexists(folder / name)]  # also finds dangling links
    if existing:
        raise FolderNotWritable(
            f"{folder} already contains {', '.join(existing)}, which would be overwritten.",
            next_step="use another folder",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_new(folder / name, text, mode=0o666)
    except OSError as error:
        raise FolderNotWritable(f"Cannot write the split to {folder}: {error.strerror}.") from error
    left_out = sum(not _is_listable(path) for paths in lists.values() for path in paths)
    message = f"written to {folder}: train with data={shell_quote(folder / YAML)}"
    return message + (f" ({left_out:,} images omitted: their names cannot be listed)" if left_out else "")


def _list(paths: Sequence[str]) -> str:
    return "".join(f"{path}\n" for path in paths if _is_listable(path))


def _is_listable(path: str) -> bool:
    """Return whether the path can be a line of a list. Ultralytics strips the start and end of the file."""
    return path.splitlines() == [path] and path == path.strip()


def _yaml(data: DataSet, folder: Path, lists: list[str]) -> str:
    """Return the YAML file of the dataset with the new lists instead of its folders; other keys are kept."""
    import yaml

    values: dict[str, Any] = load_yaml(read_bytes(data.path, MAX_BYTES))
    kept = {
        name: value
        for name, value in values.items()
        if name not in ("path", "train", "val", "validation", "test", "minival", "download")
    }
    new = {"path": str(folder.absolute()), **{name: f"{name}.txt" for name in lists}}
    header = f"# The images of {data.path.name}, split by group: no video and no copy is on both sides.\n"
    return header + str(yaml.safe_dump({**new, **kept}, sort_keys=False, allow_unicode=True))
