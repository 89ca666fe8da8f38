"""`holdfast report`: read a journal, write its report, and print the paths."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.run_state import load_run_state
from holdfast.render.console import print_json, print_lines
from holdfast.render.report import write
from holdfast.render.report.model import as_json as report_as_json
from holdfast.render.report.model import report_of
from holdfast.render.report.stages import write_stages_report
from holdfast.render.stages import has_stages, stages_summary
from holdfast.schema.errors import FolderNotWritable, UsageError
from holdfast.storage.redact import replay_redacted

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.folder import RunFolder

    Written = tuple[list[Path], dict[str, Any], list[str]]
    """The files of a report, its fields for tools, and its lines for people."""


def make_report(run: RunFolder, *, other: RunFolder | None, open_it: bool, as_json: bool) -> None:
    if other is not None and other.path.resolve() == run.path.resolve():
        raise UsageError(
            f"{run.name} cannot be compared with itself.",
            next_step="pass a different run to --compare, for example one that succeeded",
        )
    files, fields, lines = _write_stages(run) if has_stages(run) else _write(run, other)
    if as_json:
        print_json({**fields, "files": [str(file) for file in files]})
    else:
        print_lines([*lines, *(f"  {file}" for file in files)])
    if open_it:
        webbrowser.open(files[-1].as_uri())


def _write(run: RunFolder, other: RunFolder | None) -> Written:
    other_state = load_run_state(replay_redacted(other)) if other is not None else None
    report = report_of(load_run_state(replay_redacted(run)), title=run.name, reference=run.reference, other=other_state)
    try:
        files = write(report, run.path)
    except OSError as error:
        raise FolderNotWritable(
            f"Cannot write the report to {run.path}: {error.strerror}.",
            next_step="free some space, or copy the run folder to a writable location and pass the path of the copy",
        ) from error
    return files, report_as_json(report), [f"{report.title}: {report.verdict}", *(f"  {line}" for line in report.story)]


def _write_stages(run: RunFolder) -> Written:
    files = write_stages_report(run)
    summary = stages_summary(run)
    return files, summary, [f"{run.name}: {summary['verdict'] or 'not ended'}", f"  {summary['reason']}"]
