"""Detection of a record's format by its content. File names only decide what is tried first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.importers import journal_import, lightning, plain_log, transformers
from holdfast.importers.base import Reading, framework_importers
from holdfast.importers.settings import looks_like_settings, parse_settings
from holdfast.importers.table import parse_columns
from holdfast.importers.text import Source, detect_encoding, read_source, sniff
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown
from holdfast.storage.safe_files import exists

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.importers.base import Importer
    from holdfast.process.output_matcher import OutputMatcher

MAX_FILES = 200
"""Maximum number of files that are inspected in a folder."""
ORDER = ("journal", "epoch table", "step table", "trainer state", "log")


def all_importers() -> list[Importer]:
    return [*framework_importers(), lightning.IMPORTER, transformers.IMPORTER]


def list_expected_files() -> str:
    files = [f"{' and '.join(importer.files)} ({importer.title})" for importer in all_importers()]
    return ", ".join([*files, "journal.jsonl (Holdfast)", "or a log"])


def read(path: Path | None, *, exit_code: int | None, lines: OutputMatcher) -> Reading:
    """Read the record at a path, or on standard input if the path is None. Raise RecordUnknown if it is not a record."""
    if path is None:
        return _read_text(None, exit_code, lines)
    if not exists(path):
        raise RecordUnknown(
            f"{path} does not exist.",
            next_step=f"give a folder or file of a run: {list_expected_files()}; or - for a log on stdin",
        )
    try:
        return _read_folder(path, exit_code, lines) if path.is_dir() else _read_text(path, exit_code, lines)
    except OSError as error:
        raise RecordUnknown(
            f"{path} cannot be read: {error.strerror or error}.", next_step="give a file or folder that you may read"
        ) from error


# --- folders ----------------------------------------------------------------------------------------------------------


def _read_folder(folder: Path, exit_code: int | None, lines: OutputMatcher) -> Reading:
    if (folder / "journal.jsonl").is_file():
        return journal_import.read_run(folder)
    for importer in all_importers():
        if _has_files(importer, folder):
            return importer.read_folder(folder, exit_code, lines)
    return _read_inside(folder, exit_code, lines)


def _read_inside(folder: Path, exit_code: int | None, lines: OutputMatcher) -> Reading:
    """Read a folder that contains runs, or a record under another name."""
    for importer in all_importers():
        inner = _find_newest(importer, folder)
        if inner is not None:
            reading = importer.read_folder(inner, exit_code, lines)
            reading.notes.insert(0, f"In {folder.name}, only the newest was read: {inner.name}.")
            return reading
    files = [file for file in sorted(folder.iterdir())[:MAX_FILES] if file.is_file()]
    found = [(ORDER.index(kind), file) for file in files if (kind := detect_kind(file)) in ORDER]
    if not found:
        raise RecordUnknown(
            f"Nothing in {folder} is a record of a training.",
            next_step=f"give the folder of one run, or one of its files: {list_expected_files()}",
            look_at=str(folder),
        )
    best = min(order for order, _ in found)
    chosen = max((file for order, file in found if order == best), key=lambda file: file.stat().st_mtime)
    reading = _read_text(chosen, exit_code, lines)
    reading.notes.insert(0, f"In {folder.name}, only {chosen.name} was read.")
    return reading


def _has_files(importer: Importer, folder: Path) -> bool:
    return any((folder / name).is_file() for name in importer.files)


def _find_newest(importer: Importer, folder: Path) -> Path | None:
    if (pattern := importer.run_folder) is None:
        return None
    named = [(int(match[1]), entry) for entry in folder.iterdir() if (match := pattern.fullmatch(entry.name))]
    return max([(number, entry) for number, entry in named if _has_files(importer, entry)], default=(0, None))[1]


def detect_kind(path: Path) -> str | None:
    """Return the format of a file by its first bytes, or None if it is not text."""
    head = sniff(path)
    try:
        return _classify(head.decode(detect_encoding(head, path.name), "replace"), path.name) if head else None
    except RecordUnknown:
        return None


# --- files ------------------------------------------------------------------------------------------------------------


def _read_text(path: Path | None, exit_code: int | None, lines: OutputMatcher) -> Reading:
    between = lines.on("log")
    source = read_source(path, scan=lambda text: between.feed(text.encode("utf-8", "replace")))
    if not source.head.strip():
        raise RecordUnknown(
            f"{source.name} is empty.", next_step="give the record of a training that wrote something, or its log"
        )
    kind = _classify(source.head[:65536], source.name)
    if kind == "journal":
        if path is None:
            raise RecordUnknown(
                "A journal cannot be read from a pipe: the files of the ranks are needed too.",
                next_step="give the run's folder",
            )
        run = path.name == "journal.jsonl"
        return journal_import.read_run(path.parent) if run else journal_import.read_copy(path)
    for importer in all_importers():
        if importer.kind == kind:
            return importer.read_file(source, path, exit_code, lines)
    if kind == "settings":
        return _read_settings_file(source)
    if kind == "other table":
        raise RecordUnknown(
            f"{source.name} is a table without a column called epoch or step: {_show_first_line(source.head)}.",
            next_step=f"give {', '.join(_list_tables())}, or the training's log",
        )
    return plain_log.read_log(source, name=source.name, exit_code=exit_code, lines=lines)


def _classify(head: str, name: str) -> str:
    text = head.lstrip("\ufeff \t\r\n")
    first = text.partition("\n")[0].strip()
    if _is_event(first):
        return "journal"
    if text.startswith("{") and transformers.HISTORY_KEY in text:
        return "trainer state"
    columns = [column.lower() for column in parse_columns(first)] if "," in first and len(first) < 32768 else []
    if "epoch" in columns and any(column.startswith(("train/", "metrics/", "val/")) for column in columns):
        return "epoch table" if "step" not in columns else "step table"
    if {"epoch", "step"} & set(columns) and all(len(column) < 80 for column in columns):
        return "step table" if "step" in columns else "epoch table"
    if name.lower().endswith(".csv") and len(columns) > 1:
        return "other table"
    return "settings" if name.lower().endswith((".yaml", ".yml")) and looks_like_settings(text) else "log"


def _is_event(line: str) -> bool:
    if not line.startswith("{") or '"event"' not in line[:200]:
        return False
    try:
        events.decode(line)
    except (ValueError, RecursionError):  # msgspec errors are ValueErrors
        return False
    return True


def _read_settings_file(source: Source) -> Reading:
    """Read settings alone: nothing has run, but names that a framework does not know can be reported."""
    settings = parse_settings(source.head)
    reading = Reading("a settings file without a record of a training", source.name, iter(()))
    for importer in all_importers():
        reading.notes += [note for name, note in importer.rejected_settings.items() if name in settings]
    return reading


def _list_tables() -> list[str]:
    return [f"the {name} of {each.title}" for each in all_importers() for name in each.files if name.endswith(".csv")]


def _show_first_line(head: str) -> str:
    return repr(head.strip().partition("\n")[0][:120])
