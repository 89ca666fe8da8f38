"""The panel at the end of a run, and the same facts while it lives: what happened, at which step, why, what was done, where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.panel import Panel
from rich.text import Text

from holdfast.judge.policy import cause_of
from holdfast.show.plain import duration, plural, printable, size
from holdfast.show.summary import goodput, observed
from holdfast.words.verdicts import Action

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.judge.picture import AttemptPicture, Picture
    from holdfast.record.folder import RunFolder
    from holdfast.words.verdicts import Finding

COLOURS = {"learned": "green", "unproven": "yellow", "not-learned": "red", "failed": "red", "interrupted": "yellow"}
MOST_ATTEMPTS = 6


def panel(run: RunFolder, picture: Picture) -> RenderableType:
    ended = picture.ended
    outcome = ended.verdict if ended is not None else "not ended"
    colour = COLOURS.get(outcome, "cyan")
    body = Text()
    _line(body, outcome, style=f"bold {colour}", rest=f": {ended.reason}" if ended is not None else "")
    _line(body, "", rest=_figures(picture))
    _attempts(body, picture)
    _findings(body, picture)
    _unseen(body, picture)
    _next(body, run, picture)
    _line(body, "record  ", style="bold", rest=str(run.path))
    body.right_crop(1)
    return Panel(body, title=Text(f"holdfast · {run.name}"), title_align="left", border_style=colour, box=box.ROUNDED)


def _line(body: Text, head: str, *, style: str = "", rest: str = "", indent: int = 0) -> None:
    body.append(" " * indent)
    body.append(head, style=style)
    body.append(printable(rest) + "\n")


def _figures(picture: Picture) -> str:
    last = max((attempt.last_step for attempt in picture.attempts), default=0)
    spent = goodput(picture)
    facts = [plural(len(picture.attempts), "attempt"), plural(last, "step"), duration(spent["wall_s"])]
    memory = max((attempt.most_rss for attempt in picture.attempts), default=0)
    if memory:
        facts.append(f"at most {size(memory)} of memory")
    if last and spent["ratio"] is not None:
        facts.append(f"{spent['ratio']:.0%} of the time was useful training")
    return ", ".join(facts)


def _attempts(body: Text, picture: Picture) -> None:
    shown = picture.attempts[-MOST_ATTEMPTS:]
    if len(shown) < len(picture.attempts):
        _line(body, "", rest=f"({len(picture.attempts) - len(shown)} earlier attempts are in the journal)")
    if len(picture.attempts) == 1 and picture.attempt.ended is not None and picture.attempt.ended.code == 0:
        return
    for attempt in shown:
        _line(body, f"attempt {attempt.number}", style="bold", rest=f"  {_life(attempt)}")
        cause = cause_of(attempt)
        finding = attempt.found(cause) if cause is not None else None
        if finding is not None:
            _line(body, "why   ", rest=finding.message, indent=4, style="dim")
        kept = attempt.vaulted.files if attempt.vaulted is not None else []
        if kept:
            names = ", ".join(file.path.rpartition("/")[2] + (" (torn)" if file.torn else "") for file in kept[:4])
            _line(body, "kept  ", rest=f"{names} in {attempt.vaulted.files[0].kept.rpartition('/')[0]}" if attempt.vaulted else "", indent=4, style="dim")
        if attempt.decision is not None and attempt.decision.action is not Action.STOP:
            _line(body, "then  ", rest=attempt.decision.why, indent=4, style="dim")
        elif attempt.decision is not None and attempt.ended is not None and attempt.ended.code != 0:
            _line(body, "no further attempt: ", rest=attempt.decision.why, indent=4, style="dim")


def _life(attempt: AttemptPicture) -> str:
    steps = f"steps {attempt.first_step} to {attempt.last_step}" if attempt.steps else "no step seen"
    ended = attempt.ended
    if ended is None:
        return f"{steps}, running"
    how = ended.signal or ("finished" if ended.code == 0 else f"exit {ended.code}")
    if ended.stopped_by in ("user", "terminate"):
        how += ", as you asked"
    elif ended.stopped_by == "supervisor gone":
        how = "its supervisor was killed"
    elif ended.stopped_by is not None:
        how += f", stopped for {ended.stopped_by}"
    return f"{steps}, {duration(ended.seconds)}, {how}"


def _findings(body: Text, picture: Picture) -> None:
    told = {cause_of(attempt) for attempt in picture.attempts} if len(picture.attempts) > 1 or picture.findings else set()
    shown: dict[str, Finding] = {}
    for finding in picture.findings:
        alone = len(picture.attempts) == 1 and picture.attempt.ended is not None and picture.attempt.ended.code == 0
        if finding.rule == "probe-absent" or (finding.rule in told and not alone):
            continue
        shown[finding.rule] = finding
    for rule, finding in shown.items():
        colour = {"fatal": "red", "warn": "yellow", "note": "cyan"}[finding.severity]
        _line(body, f"{finding.severity}  {rule}", style=colour, rest=f"  {finding.message}")


def _unseen(body: Text, picture: Picture) -> None:
    unseen = {kind: text for kind, text in observed(picture).items() if text.startswith("not seen")}
    reasons: dict[str, list[str]] = {}
    for kind, text in unseen.items():
        reasons.setdefault(text.removeprefix("not seen").lstrip(": "), []).append(kind)
    for why, kinds in list(reasons.items())[:3]:
        _line(body, "not seen  ", style="bold", rest=f"{', '.join(kinds)}: {why}")


def _next(body: Text, run: RunFolder, picture: Picture) -> None:
    ended = picture.ended
    if ended is None or ended.verdict in ("learned", "unproven"):
        return
    cause = cause_of(picture.attempt)
    finding = picture.attempt.found(cause) if cause is not None else None
    steps = list(finding.remedies[:2]) if finding is not None else []
    if ended.verdict in ("interrupted", "failed"):
        steps.append(f"holdfast resume {run.name}")
    if picture.attempt.ended is not None and picture.attempt.ended.last_words and ended.verdict == "failed":
        steps.append(f"read {run.attempt(picture.attempt.number).stderr_log}")
    for step in steps:
        _line(body, "next  ", style="bold", rest=step)
