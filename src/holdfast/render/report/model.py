"""The content of a report, as one frozen value made from a run state. markdown.py and html.py format it.

Everything is bounded here, so that the report of a run with a million steps and hundreds of findings still opens on a
phone. Omitted items are counted; the journal has all of them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.diagnosis.checkpoints import checkpoints, last_good
from holdfast.diagnosis.explanation import explain, find_decisive
from holdfast.diagnosis.rules import by_id
from holdfast.render.report.charts import SEVERE, Chart
from holdfast.render.report.compare import Comparison, compare_runs
from holdfast.render.report.curves import charts_of
from holdfast.render.report.text import clean, clean_line, count, moment, percent
from holdfast.render.report.timeline import Timeline, timeline_of, tone_of
from holdfast.render.summary import goodput
from holdfast.render.text import plural, results_folder
from holdfast.schema.units import duration, size

if TYPE_CHECKING:
    from holdfast.diagnosis.explanation import Explanation
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.verdicts import Finding

MAX_FINDINGS = 24
MAX_EVIDENCE = 6
MAX_CHECKPOINTS = 20
MAX_LAST_LINES = 40
TONES = {"learned": "good", "unproven": "open", "not-learned": "bad", "failed": "bad", "interrupted": "open"}
ANSWERS = {"holds": "✓", "fails": "✗", "missing": "?", "does not apply": "·"}
ANSWER_NAMES = {"holds": "passed", "fails": "failed", "missing": "no evidence", "does not apply": "not checked"}
BUCKETS = {
    "training": "training steps, computing",
    "data_wait": "training steps, waiting for data",
    "evaluation": "evaluation",
    "saving": "saving checkpoints",
    "start_up": "starting, before the first step",
    "snapshot_stall": "waiting for snapshots",
    "lost_work": "lost work",
    "restart": "restarting, before the first step",
    "waiting": "between attempts",
    "other": "other",
}
LOST = ("lost_work", "restart", "waiting")
_PARAGRAPH = re.compile(r"\*\*(.+?)\.\*\*\s*(.+?)(?=\n\s*\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class FindingView:
    """A finding as shown to the user. A rule that fired in several attempts is shown once."""

    number: int
    rule: str
    severity: str
    message: str
    where: str
    evidence: tuple[str, ...]
    remedies: tuple[str, ...]
    confidence: str
    page: tuple[tuple[str, str], ...]
    """Paragraphs of the rule's page: what it means, why it happens."""
    decisive: bool


@dataclass(frozen=True)
class Check:
    """A proof that the verdict is based on."""

    sign: str
    answer: str
    name: str
    detail: str
    positive: bool


@dataclass(frozen=True)
class Share:
    """A share of the time."""

    name: str
    text: str
    took: str
    part: str
    width: float
    lost: bool


@dataclass(frozen=True)
class Cost:
    text: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class File:
    """A checkpoint."""

    path: str
    step: str
    usable: bool
    why: str


@dataclass(frozen=True)
class Todo:
    text: str
    command: str | None


@dataclass(frozen=True)
class Report:
    title: str
    verdict: str
    tone: str
    reason: str
    when: str
    figures: tuple[str, ...]
    story: tuple[str, ...]
    next_steps: tuple[Todo, ...]
    cause: str | None
    confidence: str
    why: tuple[str, ...]
    proofs: tuple[Check, ...]
    timeline: Timeline
    charts: tuple[Chart, ...]
    findings: tuple[FindingView, ...]
    findings_left_out: int
    unknown: tuple[str, ...]
    cost: Cost
    files: tuple[File, ...]
    files_left_out: int
    comparison: Comparison | None
    setup: tuple[tuple[str, str], ...]
    last_lines: tuple[str, ...]
    last_lines_of: int
    """The attempt that printed them."""
    written_by: str

    @property
    def has_reason_in_story(self) -> bool:
        """True if the story already gives the reason for the verdict."""
        return any(self.reason in sentence for sentence in self.story)


def report_of(state: RunState, *, title: str, reference: str | None = None, other: RunState | None = None) -> Report:
    """`reference` is the name of the run for `holdfast resume`, if it has one."""
    explained = explain(state, reference)
    title = clean(title, 120) or "run"
    numbered = _number_findings(state)
    files = checkpoints(state)
    last_lines_of, last_lines = _last_lines(state)
    ended = state.ended
    return Report(
        title=title,
        verdict=clean(ended.verdict, 40) if ended is not None else "not ended",
        tone=TONES.get(ended.verdict, "open") if ended is not None else "open",
        reason=clean(ended.reason, 600) if ended is not None else "the run has not ended; this is its current state",
        when=moment(state.started.at) if state.started is not None else "",
        figures=tuple(_figures(state)),
        story=tuple(clean(sentence, 600) for sentence in explained.story[:5]),
        next_steps=tuple(
            Todo(clean(step.text, 400), clean(step.command, 1000) if step.command else None)
            for step in explained.next_steps[:8]
        ),
        cause=clean(explained.cause, 60) if explained.cause is not None else None,
        confidence=explained.confidence,
        why=_clean_lines(explained.why),
        proofs=_proofs(state),
        timeline=timeline_of(state),
        charts=charts_of(state, numbered[:MAX_FINDINGS]),
        findings=_findings(state, numbered, explained),
        findings_left_out=max(0, len(numbered) - MAX_FINDINGS),
        unknown=_clean_lines(explained.unknown, 600),
        cost=_cost(state),
        files=tuple(
            File(clean(f.path), f"step {count(f.step)}", f.usable, clean(f.why, 400)) for f in files[-MAX_CHECKPOINTS:]
        ),
        files_left_out=max(0, len(files) - MAX_CHECKPOINTS),
        comparison=compare_runs(state, other, title=title) if other is not None else None,
        setup=tuple(_setup(state)),
        last_lines=last_lines,
        last_lines_of=last_lines_of,
        written_by=clean(state.started.holdfast, 40) if state.started is not None else "",
    )


def as_json(report: Report) -> dict[str, Any]:
    """Return the report for tools, without the points of the curves, which the journal has."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    fields["charts"] = [{"name": chart.name, "title": chart.title, "text": chart.caption} for chart in report.charts]
    if fields["comparison"] is not None:
        del fields["comparison"]["chart"]
    return fields


def _clean_lines(texts: list[str], max_length: int = 300) -> tuple[str, ...]:
    return tuple(clean(text, max_length) for text in texts[:MAX_EVIDENCE])


def _figures(state: RunState) -> list[str]:
    if not state.attempts:
        return []
    attempt = state.attempt
    facts = [plural(len(state.attempts), "attempt")]
    last = state.last_step
    if last or not attempt.epoch:
        facts.append(f"{count(last)} steps" if last != 1 else "1 step")
    if attempt.epoch:
        of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
        facts.append(f"{attempt.epoch}{of} epochs" if of or attempt.epoch != 1 else "1 epoch")
    wall = goodput(state)["wall_s"]
    facts += [duration(wall)] if wall else []  # a log may have no times
    peak = max(each.memory.most_rss for each in state.attempts)
    return [*facts, f"peak memory {size(peak)}"] if peak else facts


def _proofs(state: RunState) -> tuple[Check, ...]:
    proofs = state.ended.proofs if state.ended is not None else []
    return tuple(
        Check(ANSWERS[proof.answer], proof.answer, clean(proof.name, 60), clean(proof.detail, 400), proof.positive)
        for proof in proofs[:20]
    )


# --- findings ---------------------------------------------------------------------------------------------------------

Group = list["Finding"]


def _number_findings(state: RunState) -> list[tuple[int, Group]]:
    """Number the findings by rule: the decisive one first, then by severity, then in order of time."""
    groups: dict[str, Group] = {}
    for finding in state.findings:
        groups.setdefault(finding.rule, []).append(finding)
    first = find_decisive(state) if state.attempts else None
    for group in groups.values():
        # The first one is shown: the decisive finding, else the most severe, else the newest.
        group.sort(key=lambda finding: (finding is not first, SEVERE[finding.severity], -finding.attempt))
    order = sorted(
        groups.values(), key=lambda group: (group[0] is not first, SEVERE[group[0].severity], group[0].attempt)
    )
    return list(enumerate(order, 1))


def _findings(state: RunState, numbered: list[tuple[int, Group]], explained: Explanation) -> tuple[FindingView, ...]:
    several = len(state.attempts) > 1
    return tuple(
        _view_finding(n, group, several=several, is_decisive=group[0].rule == explained.cause)
        for n, group in numbered[:MAX_FINDINGS]
    )


def _view_finding(n: int, group: Group, *, several: bool, is_decisive: bool) -> FindingView:
    finding = group[0]
    return FindingView(
        number=n,
        rule=clean(finding.rule, 60),
        severity=finding.severity,
        message=clean(finding.message, 600),
        where=_where(group, several=several),
        evidence=_clean_lines(finding.evidence),
        remedies=_clean_lines(finding.remedies),
        confidence=finding.confidence,
        page=_page(finding.rule) if n <= 12 else (),
        decisive=is_decisive,
    )


def _where(group: Group, *, several: bool) -> str:
    finding = group[0]
    places = [f"attempt {finding.attempt}"] if several else []
    places += [f"step {count(finding.step)}"] if finding.step else []
    places += [f"epoch {finding.epoch}"] if finding.epoch else []
    others = {other.attempt: other.step for other in reversed(group[1:]) if other.attempt != finding.attempt}
    if others:
        steps = [f"{n} (step {count(step)})" if step else str(n) for n, step in sorted(others.items())]
        numbers = ", ".join(steps[:6]) + (", …" if len(steps) > 6 else "")
        places.append(f"also in attempt{'s' if len(others) > 1 else ''} {numbers}")
    return ", ".join(places)


def _page(rule: str) -> tuple[tuple[str, str], ...]:
    known = by_id().get(rule)
    found = _PARAGRAPH.findall(known.page) if known is not None else []
    wanted = ("What it means", "Why it happens")
    return tuple((head, clean(" ".join(text.split()), 900)) for head, text in found if head in wanted)


# --- cost -----------------------------------------------------------------------------------------------------


def _cost(state: RunState) -> Cost:
    spent = goodput(state)
    wall = spent["wall_s"]
    if not spent["buckets"] or wall <= 0:
        return Cost("", ())
    if not any(attempt.steps for attempt in state.attempts) and state.attempt.epoch:
        return Cost(_describe_cost(state, wall, 0.0), ())  # a log of epochs does not show where the time went
    shares = [
        Share(name, BUCKETS.get(name, clean(name, 40)), duration(took), percent(took / wall), 0.0, name in LOST)
        for name, took in spent["buckets"].items()
        if took >= 0.05 or took / wall >= 0.01
    ]
    total = sum(spent["buckets"].values()) or 1.0
    widths = [round(100 * spent["buckets"][share.name] / total, 2) for share in shares]
    shares = [
        Share(share.name, share.text, share.took, share.part, width, share.lost)
        for share, width in zip(shares, widths, strict=True)
    ]
    shares.sort(key=lambda share: list(BUCKETS).index(share.name) if share.name in BUCKETS else 99)
    return Cost(_describe_cost(state, wall, spent["useful_s"]), tuple(shares))


def _describe_cost(state: RunState, wall: float, useful: float) -> str:
    """Say how long the run took, how much of that was useful, and what is saved."""
    took, useful = f"The run took {duration(wall)}", min(useful, wall)
    verdict = state.ended.verdict if state.ended is not None else None
    good = last_good(state)
    if verdict == "not-learned":
        kept = f" Checkpoints up to step {count(good.step)} are still usable." if good is not None else ""
        steps = f", {duration(useful)} of it in training steps" if useful else ""
        return f"{took}{steps}. The model did not learn, so this time is lost.{kept}"
    if not any(attempt.steps for attempt in state.attempts):
        return f"{took}." if state.attempt.epoch else f"{took}; no training step was recorded."
    text = f"{took}; {duration(useful)} of it ({percent(useful / wall)}) was spent on useful training steps."
    if verdict in ("failed", "interrupted") and tone_of(state.attempt) != "good":
        last = state.attempt.last_step
        if good is None:
            return f"{text} No usable checkpoint is known: unless the training saved its state elsewhere, the work is lost."
        if last > good.step:
            return f"{text} The work up to step {count(good.step)} is saved; the next {plural(last - good.step, 'step')} are not."
        return f"{text} All of it is saved."
    return text


# --- setup ---------------------------------------------------------------------------------------------------------


def _setup(state: RunState) -> list[tuple[str, str]]:
    started = state.started
    if started is None:
        return []
    attempt = state.attempts[-1] if state.attempts else None
    facts = [
        ("command", clean(shlex.join(started.command), 1000)),
        ("folder", clean(started.cwd)),
        ("machine", ", ".join([clean(started.platform, 120), *_memory_of(started.memory_total)])),
        ("versions", _versions(started.holdfast, attempt)),
    ]
    if attempt is not None and attempt.memory.device is not None:
        facts.append(("device", clean(attempt.memory.device.device, 80)))
    if attempt is not None and attempt.framework is not None:
        facts.append(("framework", clean(attempt.framework, 80)))
    if (results := results_folder(state)) is not None:
        facts.append(("results", clean(results, 600)))
    if attempt is not None and attempt.attached is not None and attempt.attached.world_size > 1:
        facts.append(("processes", str(attempt.attached.world_size)))
    if started.tuning:
        facts.append(("rule settings", clean(msgspec.json.encode(started.tuning).decode(), 600)))
    facts += [(clean(name, 80), clean(value, 200)) for name, value in sorted(started.environment.items())[:24]]
    return [(name, value) for name, value in facts if value]


def _memory_of(total: int | None) -> list[str]:
    return [f"{size(total)} of memory"] if total else []


def _versions(holdfast: str, attempt: AttemptState | None) -> str:
    versions = []
    if attempt is not None:
        versions += [f"torch {attempt.torch}"] if attempt.torch else []
        versions += [f"Python {attempt.attached.python}"] if attempt.attached is not None else []
    return clean(", ".join([*versions, *([f"Holdfast {holdfast}"] if holdfast else [])]), 200)


def _last_lines(state: RunState) -> tuple[int, tuple[str, ...]]:
    """Return the last output lines of the newest failed attempt, with the system's evidence about its exit."""
    for attempt in reversed(state.attempts):
        ended = attempt.ended
        if ended is not None and tone_of(attempt) == "bad" and (ended.last_lines or ended.evidence):
            evidence = [
                clean(f"[{item.source}] {item.text}") for item in ended.evidence[:8] if item.source != "last output"
            ]
            lines = [clean_line(line) for line in ended.last_lines[-MAX_LAST_LINES:]]
            return attempt.number, tuple(evidence + lines)
    return 0, ()
