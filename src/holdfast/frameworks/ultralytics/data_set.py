"""Reads a YOLO dataset from its YAML file: its root, the images of each split, its classes. It is read as Ultralytics reads it,
except that nothing is downloaded and that all problems are reported at once, before a training starts.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics.setting_values import IMAGE_SUFFIXES
from holdfast.schema.errors import DataSetInvalid, HoldfastError
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.safe_files import FileTooLarge, exists, expand_user, is_dir, is_file, open_regular, read_bytes
from holdfast.storage.safe_yaml import MAX_BYTES, YamlRefused, load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_SETTINGS = 4 << 20
MAX_LIST = 256 << 20
"""Bytes of a text file that lists images."""
MAX_PATH = 4096
"""Characters of a path; no system opens a longer one."""
MAX_IMAGES = 2_000_000
MAX_FOLDERS = 100_000
KERNEL_FOLDERS = ("/proc", "/sys")
"""Not entered below the folder of a split."""
MAX_CLASSES = 100_000
MAX_CLASS_NAME = 1000
MAX_YAMLS = 200
"""YAML files of one folder that are read."""
SPLITS = ("train", "val", "test")
FORMAT = "a data YAML file has train:, val: and names:, see https://docs.ultralytics.com/datasets/detect"


@dataclass(frozen=True)
class DataSet:
    path: Path
    root: Path
    names: list[str]
    splits: dict[str, list[Path]]
    """Images of `train`, `val` and `test` (if present), sorted by name."""
    keypoints: tuple[int, int] | None = None
    """The number of keypoints of a pose and the number of values per keypoint; each pose label has that many additional columns."""
    masks: bool = False
    """Whether the labels are mask images."""
    cut: list[str] = field(default_factory=list)
    """Splits with more images than were counted."""

    @property
    def images(self) -> int:
        return sum(len(images) for images in self.splits.values())


def read(path: Path, *, cwd: Path | None = None) -> DataSet:
    """Read the dataset of this YAML file. `cwd` is the working folder of the training; relative paths in the file start there.

    Raises DataSetInvalid with one sentence per problem.
    """
    values = _load(path)
    problems: list[str] = []
    names = _parse_names(values, path, problems)
    root = _find_root(values, path, cwd or Path.cwd(), problems)
    splits: dict[str, list[Path]] = {}
    cut: list[str] = []
    for split in SPLITS if root is not None else ():
        named = values.get(split, values.get("validation") if split == "val" else None)
        if not named:
            if split != "test":
                problems.append(f"{path} does not specify the images for {split}: add {split}: images/{split}.")
            continue
        assert root is not None
        splits[split] = _find_images(split, named, root, path, problems)
        if len(splits[split]) >= MAX_IMAGES:
            cut.append(split)
    if problems:
        raise DataSetInvalid("\n".join(problems), look_at=str(path))
    assert root is not None
    shape = values.get("kpt_shape")
    points = (shape[0], shape[1]) if isinstance(shape, list) and [type(part) for part in shape] == [int, int] else None
    masks = bool(values.get("masks_dir")) or is_dir(root / "masks")
    return DataSet(path=path, root=root, names=names, splits=splits, keypoints=points, masks=masks, cut=cut)


def label_path(image: Path) -> Path:
    """Return the label file of an image: the last folder named `images` becomes `labels`, and the suffix .txt."""
    text = str(image)
    head, found, tail = text.rpartition(f"{os.sep}images{os.sep}")
    return Path(f"{head}{os.sep}labels{os.sep}{tail}" if found else text).with_suffix(".txt")


def link_name(number: int, image: Path) -> str:
    """Return a name for a link to this image: a number and the (end of the) image's own name."""
    return f"{number:05d}-{image.name[-60:]}"


def find_data_yamls(folder: Path) -> list[Path]:
    """Return the files in this folder that look like data YAML files."""
    found = []
    yamls = [entry for entry in sorted(folder.iterdir()) if entry.suffix in (".yaml", ".yml") and is_file(entry)]
    for entry in yamls[:MAX_YAMLS]:
        try:
            values = _load(entry)
        except DataSetInvalid:
            continue
        if "train" in values and ("names" in values or "nc" in values):
            found.append(entry)
    return found


def config_folder() -> Path:
    """Return the folder of Ultralytics' own settings. If the home folder is unknown, the result does not exist."""
    if given := os.environ.get("YOLO_CONFIG_DIR"):
        return expand_user(given) / "Ultralytics"
    if sys.platform == "darwin":
        return expand_user("~/Library/Application Support/Ultralytics")
    return Path(os.environ.get("XDG_CONFIG_HOME") or expand_user("~/.config")) / "Ultralytics"


def find_ultralytics_folder(name: str) -> Path | None:
    """Return a folder from Ultralytics' own settings, e.g. `datasets_dir`; None if Ultralytics was never started."""
    try:
        settings = json.loads(read_bytes(config_folder() / "settings.json", MAX_SETTINGS))
    except (OSError, ValueError, RecursionError):
        return None
    value = settings.get(name) if isinstance(settings, dict) else None
    return Path(value) if isinstance(value, str) and value else None


def _load(path: Path) -> dict[str, Any]:
    try:
        data = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        near = _suggest(path)
        raise DataSetInvalid(f"There is no dataset at {shorten(path)}.{near}", look_at=shorten(path.parent)) from None
    except FileTooLarge:
        raise DataSetInvalid(
            f"{path} is larger than {MAX_BYTES:,} bytes and therefore not a data YAML file: {FORMAT}."
        ) from None
    except OSError as error:
        if is_dir(path):
            near = _suggest(path / "data.yaml")
            raise DataSetInvalid(f"{path} is a folder: specify the data YAML file in it.{near}") from None
        raise DataSetInvalid(f"The dataset {shorten(path)} cannot be read: {error.strerror}.") from error
    try:
        values = load_yaml(data)
    except YamlRefused as error:
        line = f", line {error.line}" if error.line is not None else ""
        raise DataSetInvalid(f"{path}{line} is not valid YAML: {error}. Fix it, or specify another file.") from None
    if not isinstance(values, dict):
        raise DataSetInvalid(f"{path} is not a data YAML file: {FORMAT}.")
    return values


def shorten(path: Path | str) -> str:
    """Return the path, shortened for a message."""
    text = str(path)
    return text if len(text) <= MAX_PATH // 8 else f"{text[:200]} ... ({len(text):,} characters)"


def _suggest(path: Path) -> str:
    try:
        here = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return f" The folder {shorten(path.parent)} does not exist either." if not is_dir(path.parent) else ""
    near = difflib.get_close_matches(path.name, here, n=1, cutoff=0.5) or (here if len(here) == 1 else [])
    return f" Did you mean {path.parent / near[0]}?" if near else ""


def _parse_names(values: Mapping[str, Any], path: Path, problems: list[str]) -> list[str]:
    names, count = values.get("names"), values.get("nc")
    if isinstance(count, int) and count > MAX_CLASSES:
        problems.append(f"{path} has nc: {count}: more than {MAX_CLASSES:,} classes are not supported.")
        return []
    if names is None and isinstance(count, int) and count > 0:
        return [f"class_{number}" for number in range(count)]
    if isinstance(names, dict):
        try:
            by_number = {int(number): name for number, name in names.items()}
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{path}: names has a key that is not a number; write 0: first, 1: second, and so on.")
            return []
        if by_number and sorted(by_number) != list(range(len(by_number))):
            problems.append(f"{path}: names must count from 0 to {len(by_number) - 1} without a gap.")
        names = [by_number[number] for number in sorted(by_number)]
    if not isinstance(names, list) or not names:
        problems.append(f"{path} names no classes: add names: [first, second].")
        return []
    if isinstance(count, int) and count != len(names):
        problems.append(f"{path} has nc: {count} but names {len(names)} classes: remove nc, or make them agree.")
    if any(isinstance(name, (list, dict, set)) or len(str(name)) > MAX_CLASS_NAME for name in names):
        problems.append(f"{path}: a class in names is a list or too long: write one word for each class.")
        return []
    return [str(name) for name in names]


def _find_root(values: Mapping[str, Any], path: Path, cwd: Path, problems: list[str]) -> Path | None:
    """Return the root folder. Ultralytics resolves it from its working folder, then from its datasets folder, never from the YAML file."""
    given = values.get("path")
    if not given:
        return path.absolute().parent
    if not isinstance(given, str):
        problems.append(f"{path}: path: is not a string; write the folder of the dataset, or remove it.")
        return None
    if exists(cwd / given):
        return cwd / given
    own = find_ultralytics_folder("datasets_dir")
    if not Path(given).is_absolute() and own is not None and exists(own / given):
        return own / given
    message = f"{path}: the folder of the dataset, path: {shorten(given)}, does not exist"
    if not Path(given).is_absolute() and exists(path.absolute().parent / given):
        message += f" relative to {cwd}, where the training runs (Ultralytics does not use the folder of the YAML file)"
        fix = f"write path: {(path.absolute().parent / given).resolve()}"
    elif values.get("download"):
        fix = f"Ultralytics would download it at startup: do that first, with yolo train data={shell_quote(path)} epochs=1"
    else:
        fix = "fix it; without path:, folders are relative to the YAML file"
    problems.append(f"{message}: {fix}.")
    return None


def _find_images(split: str, named: Any, root: Path, path: Path, problems: list[str]) -> list[Path]:
    images: list[Path] = []
    sources = named if isinstance(named, list) else [named]
    for source in sources:
        if not isinstance(source, str):
            problems.append(f"{path}: {split}: is not a path; write {split}: images/{split}.")
            return []
        place = root / source
        if not exists(place) and source.startswith("../"):  # Ultralytics accepts this too
            place = root / source[3:]
        try:
            found = sorted(_list_images(place, MAX_IMAGES - len(images)))
        except FileNotFoundError:
            problems.append(
                f"The images for {split} are missing: {shorten(place)} does not exist (specified in {path})."
            )
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is neither a folder nor a list of images"
            problems.append(f"The images for {split} cannot be listed: {shorten(place)}: {reason}.")
            continue
        if not found:
            expected = "jpg, png etc." if is_dir(place) else "one path per line"
            problems.append(f"There are no images for {split} in {place} ({expected}): add them, or fix {path}.")
        images += found
    return images


def _list_images(place: Path, limit: int) -> Iterator[Path]:
    if is_dir(place):
        yield from _walk(place, limit)
        return
    read = 0
    with open_regular(place) as file:
        while limit > 0 and read < MAX_LIST and (raw := file.readline(MAX_PATH + 1)):
            limit -= 1
            if len(raw) > MAX_PATH or b"\0" in raw:
                raise OSError(errno.EINVAL, "it is neither a folder nor a list of images")
            line = raw.decode("utf-8" if read else "utf-8-sig")
            read += len(raw)
            if (name := line.strip()) and _is_image(name):
                yield place.parent / name[2:] if name.startswith("./") else Path(name)


def _walk(folder: Path, limit: int) -> Iterator[Path]:
    """Yield the images in a folder. Links are followed, but no folder is entered twice. Hidden files are skipped, as in Ultralytics.

    The kernel's own folders are skipped too, because they contain links to all others.
    """
    seen = set()
    kernels = _find_devices(KERNEL_FOLDERS)
    for here, folders, files in os.walk(folder, followlinks=True):
        status = Path(here).stat()
        key = (status.st_dev, status.st_ino)
        if key in seen or status.st_dev in kernels:
            folders.clear()
            continue
        seen.add(key)
        if len(seen) > MAX_FOLDERS:
            raise OSError(errno.EFBIG, f"it has more than {MAX_FOLDERS:,} folders")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if _is_image(name) and not name.startswith("."):
                yield Path(here, name)
                limit -= 1
                if limit <= 0:
                    return


def _find_devices(folders: Iterable[str]) -> set[int]:
    found = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.add(os.stat(folder).st_dev)  # noqa: PTH116 - the same style as the line below
    with contextlib.suppress(OSError):
        found.discard(os.stat("/").st_dev)  # noqa: PTH116
    return found


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def count_images(path: Path, cwd: Path) -> int:
    """Return the number of images in train and val; 0 if the dataset cannot be read."""
    try:
        splits = read(path, cwd=cwd).splits
    except (HoldfastError, OSError):
        return 0
    return sum(len(splits.get(name, ())) for name in ("train", "val"))
