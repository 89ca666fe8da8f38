"""A run with several stages, for people and for tools: its summary and its panel, from the journals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.run_state import load_run_state
from holdfast.diagnosis.stages import load_staged_run
from holdfast.render.summary import head, summary_of
from holdfast.render.text import plural, printable
from holdfast.schema.units import duration
from holdfast.storage.folder import stage_folders
from holdfast.storage.redact import replay_redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import RunState
    from holdfast.diagnosis.stages import StagedRun, StageState
    from holdfast.render.box import Box, Row
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder

MERGED = ("attempts", "findings", "decisions", "checkpoints")
"""Lists that the summary of the whole run collects from its stages, with the stage's name."""


@dataclass(frozen=True)
class StageView:
    """A stage with the state of its run."""

    stage: StageState
    run: RunFolder | None
    state: RunState | None
    summary: dict[str, Any]


def has_stages(run: RunFolder) -> bool:
    return run.stages.is_dir()


def load_stages(run: RunFolder, staged_run: StagedRun, plan: Plan | None = None) -> list[StageView]:
    folders = {folder.path.name: folder for folder in stage_folders(run)}
    stages = []
    for stage in sorted(staged_run.stages, key=lambda stage: stage.number):
        folder = folders.get(stage.started.folder) if stage.started is not None else None
        state = load_run_state(replay_redacted(folder, plan)) if folder is not None else None
        summary = summary_of(folder, state) if folder is not None and state is not None else {}
        stages.append(StageView(stage, folder, state, summary))
    return stages


def stages_summary(run: RunFolder, plan: Plan | None = None) -> dict[str, Any]:
    """Return the summary of any run, with the stage of each attempt and finding. If `plan` is given, its secrets are replaced."""
    staged_run = load_staged_run(replay_redacted(run, plan))
    stages = load_stages(run, staged_run, plan)
    newest = next((each.summary for each in reversed(stages) if each.summary), {})
    summary: dict[str, Any] = {
        **head(run, staged_run.ended),
        "proofs": newest.get("proofs", []),
        "coverage": newest.get("coverage", {}),
        "explanation": newest.get("explanation"),
        "stages": [_stage(each) for each in stages],
        "deliverables": deliverables(staged_run),
        "goodput": _goodput([each.summary["goodput"] for each in stages if each.summary]),
    }
    for name in MERGED:
        summary[name] = [{"stage": each.stage.name, **item} for each in stages for item in each.summary.get(name, [])]
    return summary


def count_of(staged_run: StagedRun) -> int:
    """Number of stages in the plan, started or not."""
    return max(
        [stage.started.of for stage in staged_run.stages if stage.started is not None] + [len(staged_run.stages)]
    )


def deliverables(staged_run: StagedRun) -> dict[str, str]:
    """The best model of the whole run, and the folder of the framework's results."""
    best = staged_run.best
    if best is None:
        return {}
    files = {"best": best.best, "last": best.last, "results": best.results}
    return {"stage": best.name, **{name: path for name, path in files.items() if path is not None}}


def _stage(each: StageView) -> dict[str, Any]:
    stage = each.stage
    fields: dict[str, Any] = {"n": stage.number, "name": stage.name, "state": state_of(stage)}
    if stage.started is not None:
        fields |= {"folder": f"stages/{stage.started.folder}", "weights": stage.started.weights}
        fields |= {"settings": stage.started.settings, "expects": stage.started.expects}
    if stage.ended is not None:
        ended = stage.ended
        fields |= {"verdict": ended.verdict, "reason": ended.reason, "metric": ended.metric, "reached": ended.reached}
        fields |= {"gate": ended.gate, "gate_message": ended.gate_message, "best": ended.best, "last": ended.last}
        fields |= {"results": ended.results}
    if stage.left_out is not None:
        fields["why"] = stage.left_out.why
    fields["wall_s"] = each.summary["goodput"]["wall_s"] if each.summary else None
    return fields


def state_of(stage: StageState) -> str:
    if stage.left_out is not None:
        return "skipped"
    if stage.ended is None:
        return "started" if stage.started is not None else "not started"
    if not stage.passed and stage.ended.gate == "closed":
        return "gate closed"
    return stage.ended.verdict


def _goodput(parts: list[dict[str, Any]]) -> dict[str, Any]:
    wall, useful = sum(part["wall_s"] for part in parts), sum(part["useful_s"] for part in parts)
    buckets: dict[str, float] = {}
    for part in parts:
        for name, seconds in part["buckets"].items():
            buckets[name] = round(buckets.get(name, 0.0) + seconds, 3)
    ratio = round(useful / wall, 4) if wall else None
    return {"wall_s": round(wall, 3), "useful_s": round(useful, 3), "ratio": ratio, "buckets": buckets}


def line_of(stage: StageState) -> str:
    """One stage in one line."""
    reason = reason_of(stage)
    return f"{state_of(stage)}; {reason}" if reason else state_of(stage)


def reason_of(stage: StageState) -> str:
    """Why the stage ended as it did."""
    if stage.left_out is not None:
        return stage.left_out.why
    if stage.ended is None:
        return ""
    ended = stage.ended
    return ended.reason if ended.verdict not in ("learned", "unproven") else ended.gate_message or ended.reason


def stages_panel(run: RunFolder, plan: Plan | None = None) -> Box:
    from holdfast.render.box import Box  # noqa: PLC0415 - only needed for a panel
    from holdfast.render.panel import COLOURS  # noqa: PLC0415

    staged_run = load_staged_run(replay_redacted(run, plan))
    outcome = staged_run.ended.verdict if staged_run.ended is not None else "not ended"
    colour = COLOURS.get(outcome, "cyan")
    rows = (
        (label, style, printable(text))
        for label, style, text in _rows(run, staged_run, plan, outcome, f"bold {colour}")
    )
    return Box(f"holdfast · {run.name}", rows, colour)


def print_stages_panel(run: RunFolder, plan: Plan | None = None) -> None:
    from holdfast.render.panel import print_box  # noqa: PLC0415

    print_box(run, stages_panel(run, plan))


def _rows(run: RunFolder, staged_run: StagedRun, plan: Plan | None, outcome: str, style: str) -> Iterator[Row]:
    from holdfast.render.report import HTML  # noqa: PLC0415

    yield outcome, style, staged_run.ended.reason if staged_run.ended is not None else "the run has not ended"
    summary = stages_summary(run, plan)
    spent = summary["goodput"]
    attempts = len(summary["attempts"])
    useful = f", {spent['ratio']:.0%} useful training time" if spent["ratio"] else ""
    yield (
        "",
        "",
        f"{plural(count_of(staged_run), 'stage')}, {plural(attempts, 'attempt')}, {duration(spent['wall_s'])}{useful}",
    )
    for stage in sorted(staged_run.stages, key=lambda stage: stage.number):
        yield f"stage {stage.number}", "bold", f"{stage.name}: {line_of(stage)}"
        for change in (
            change for made in summary["attempts"] if made["stage"] == stage.name for change in made["changes"]
        ):
            yield (
                "  changed",
                "",
                f"{change['setting']} {change['before']} -> {change['after']}: {change.get('why', '')}",
            )
    if count_of(staged_run) > len(staged_run.stages):
        yield "", "", f"{plural(count_of(staged_run) - len(staged_run.stages), 'stage')} not started"
    files = summary["deliverables"]
    if files.get("best"):
        yield "best", "bold green", f"{files.get('best', '')} (stage {files['stage']})"
        if "results" in files:
            yield "results", "bold", files["results"]
    if outcome in ("interrupted", "failed"):
        yield "next", "bold", f"holdfast resume {run.shell_reference}"
    if (run.path / HTML).is_file():
        yield "report", "bold", str(run.path / HTML)
    yield "run folder", "bold", str(run.path)
