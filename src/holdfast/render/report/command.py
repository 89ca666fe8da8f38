"""`holdfast report`: read a journal, write its report, and print the paths."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING

from holdfast.diagnosis.run_state import load_run_state
from holdfast.render.console import print_json, print_line, print_lines
from holdfast.render.report import write
from holdfast.render.report.model import as_json as report_as_json
from holdfast.render.report.model import report_of
from holdfast.render.report.stages import write_stages_report
from holdfast.render.stages import has_stages, stages_summary
from holdfast.schema.errors import FolderNotWritable, UsageError
from holdfast.storage.redact import replay_redacted

if TYPE_CHECKING:
    from holdfast.storage.folder import RunFolder


def make_report(run: RunFolder, *, other: RunFolder | None, open_it: bool, as_json: bool) -> None:
    if other is not None and other.path.resolve() == run.path.resolve():
        raise UsageError(
            f"{run.name} cannot be compared with itself.",
            next_step="pass a different run to --compare, for example one that succeeded",
        )
    if has_stages(run):
        _make_stages_report(run, open_it=open_it, as_json=as_json)
        return
    other_state = load_run_state(replay_redacted(other)) if other is not None else None
    report = report_of(load_run_state(replay_redacted(run)), title=run.name, reference=run.reference, other=other_state)
    try:
        files = write(report, run.path)
    except OSError as error:
        raise FolderNotWritable(
            f"Cannot write the report to {run.path}: {error.strerror}.",
            next_step="free some space, or copy the run folder to a writable location and pass the path of the copy",
        ) from error
    if as_json:
        print_json({**report_as_json(report), "files": [str(file) for file in files]})
    else:
        print_line(f"{report.title}: {report.verdict}")
        for sentence in report.story:
            print_line(f"  {sentence}")
        print_lines(f"  {file}" for file in files)
    if open_it:
        webbrowser.open(files[-1].as_uri())


def _make_stages_report(run: RunFolder, *, open_it: bool, as_json: bool) -> None:
    files = write_stages_report(run)
    summary = stages_summary(run)
    if as_json:
        print_json({**summary, "files": [str(file) for file in files]})
    else:
        print_lines([f"{run.name}: {summary['verdict'] or 'not ended'}", f"  {summary['reason']}"])
        print_lines(f"  {file}" for file in files)
    if open_it:
        webbrowser.open(files[-1].as_uri())
