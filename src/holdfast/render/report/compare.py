"""A comparison of two runs: which settings differ, and which results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.render.report.charts import MAX_POINTS, Chart, line_of, not_finite, spans_decades, step_time
from holdfast.render.report.text import NOTHING, clean, count, number
from holdfast.schema.events import as_number
from holdfast.schema.units import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import RunState
    from holdfast.diagnosis.series import Series

MAX_ROWS = 40
WORD = "word"
"""Name for an argument of a command line that has no name."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_SETTING = re.compile(r"(?:--?)?([A-Za-z][\w.-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    what: str
    here: str
    there: str
    same: bool


@dataclass(frozen=True)
class Comparison:
    name: str
    settings: tuple[Row, ...]
    """Commands, versions and environment that differ."""
    same: tuple[str, ...]
    """Settings that are the same."""
    results: tuple[Row, ...]
    chart: Chart | None


def compare_runs(here: RunState, there: RunState, *, title: str) -> Comparison:
    settings = list(_settings(here, there))
    name = clean(there.started.run if there.started is not None else "the other run", 80)
    if name == title:
        name = f"{name} (other run)"
    return Comparison(
        name=name,
        settings=tuple(row for row in settings if not row.same)[:MAX_ROWS],
        same=tuple(row.what for row in settings if row.same and not row.what.startswith(WORD))[:MAX_ROWS],
        results=tuple(row for row in _results(here, there) if {row.here, row.there} != {NOTHING})[:MAX_ROWS],
        chart=_chart(here, there, title, name),
    )


def settings_in(command: list[str]) -> dict[str, str]:
    """Return the settings of a command line: `--lr 0.1`, `--lr=0.1` and `lr=0.1` all set lr to 0.1."""
    found: dict[str, str] = {}
    words = list(command)
    position = 0
    while words:
        word = words.pop(0)
        if match := _SETTING.fullmatch(word):
            found[match[1]] = match[2]
        elif _OPTION.fullmatch(word):
            has_value = bool(words) and not _OPTION.fullmatch(words[0]) and not _SETTING.fullmatch(words[0])
            found[word.lstrip("-")] = words.pop(0) if has_value else "given"
        else:
            position += 1
            found[f"{WORD} {position}"] = word
    return found


def _settings(here: RunState, there: RunState) -> Iterator[Row]:
    mine, theirs = _command(here), _command(there)
    for name in dict.fromkeys([*mine, *theirs]):
        yield _row(name, mine.get(name), theirs.get(name))
    for name, value in _setup(here).items():
        yield _row(name, value, _setup(there).get(name))
    mine, theirs = _environment(here), _environment(there)
    for name in dict.fromkeys([*mine, *theirs]):
        yield _row(name, mine.get(name), theirs.get(name))


def _command(state: RunState) -> dict[str, str]:
    return settings_in(state.started.command) if state.started is not None else {}


def _environment(state: RunState) -> dict[str, str]:
    return state.started.environment if state.started is not None else {}


def _setup(state: RunState) -> dict[str, str | None]:
    started = state.started
    attached = state.attempt.attached if state.attempts else None
    device = state.attempt.memory.device if state.attempts else None
    return {
        "folder": started.cwd if started is not None else None,
        "platform": started.platform if started is not None else None,
        "torch": state.attempt.torch if state.attempts else None,
        "Python": attached.python if attached is not None else None,
        "threads": str(attached.threads) if attached is not None and attached.threads is not None else None,
        "processes": str(attached.world_size) if attached is not None else None,
        "device": device.device if device is not None else None,
        "memory of the machine": size(started.memory_total) if started is not None and started.memory_total else None,
        "Holdfast": started.holdfast if started is not None else None,
    }


def _row(what: str, here: str | None, there: str | None) -> Row:
    return Row(clean(what, 80), _format(here), _format(there), here == there)


def _format(value: str | None) -> str:
    return NOTHING if value is None else clean(value, 160) or "(empty)"


def _results(here: RunState, there: RunState) -> Iterator[Row]:
    mine, theirs = _results_of(here), _results_of(there)
    for what in dict.fromkeys([*mine, *theirs]):
        yield _row(what, mine.get(what), theirs.get(what))


def _results_of(state: RunState) -> dict[str, str]:
    attempts = state.attempts
    if not attempts:
        return {}
    pace = [attempt.pace for attempt in attempts]
    steps, spent = sum(p.steps.count for p in pace), sum(p.step_seconds for p in pace)
    peak = max(attempt.memory.most_rss for attempt in attempts)
    results: dict[str, str] = {
        "verdict": state.ended.verdict if state.ended is not None else "not ended",
        "attempts": str(len(attempts)),
        "steps": count(state.last_step),
        **_losses("loss", state.loss),
        "time per step": step_time(spent / steps) if steps else NOTHING,
        "waiting for data": f"{sum(p.data_wait for p in pace) / spent:.0%}" if spent else NOTHING,
        "peak memory": size(peak) if peak else NOTHING,
    }
    for name, series in list(attempts[-1].losses.parts.items())[:8]:
        results |= {what: value for what, value in _losses(name, series).items() if what.endswith(", last")}
    latest = attempts[-1].metrics.latest
    if latest is not None:
        results |= {name: number(as_number(value)) for name, value in list(latest.values.items())[:16]}
    if state.started is not None:
        results["duration"] = duration(max(0.0, state.last_at - state.started.at - state.away))
    return results


def _losses(name: str, series: Series) -> dict[str, str]:
    if not series.count:
        return {}
    return {
        f"{name}, first": number(series.first),
        f"{name}, lowest": number(series.lowest),
        f"{name}, last": number(series.last),
    }


def _chart(here: RunState, there: RunState, title: str, name: str) -> Chart | None:
    half = MAX_POINTS // 2
    mine = line_of(title, (attempt.loss for attempt in here.attempts[-20:]), half)
    theirs = line_of(name, (attempt.loss for attempt in there.attempts[-20:]), half, is_other=True)
    if not mine.strokes or not theirs.strokes:
        return None
    caption = f"The loss of {clean(title, 80)} and of {name}, step by step."
    nonfinite = not_finite(here.attempts[-20:], lambda attempt: attempt.loss)
    return Chart(
        "comparison", "Both losses", caption, (mine, theirs), nonfinite=nonfinite, log=spans_decades([mine, theirs])
    )
