"""Words for the tests of `diagnose`: fixtures by name, and what a reader makes of a text."""

from __future__ import annotations

from pathlib import Path

from holdfast.diagnosis.output_patterns import needles, rules_matching
from holdfast.importers import detect
from holdfast.importers.diagnose import Diagnosis, diagnose
from holdfast.process.output_matcher import OutputMatcher

FIXTURES = Path(__file__).with_name("fixtures")


def judged(name: str | Path, exit_code: int | None = None) -> Diagnosis:
    return diagnose(FIXTURES / name, exit_code=exit_code)


def severities(diagnosis: Diagnosis) -> dict[str, str]:
    """Rule -> the gravest that it said."""
    order = ("note", "warn", "fatal")
    found: dict[str, str] = {}
    for finding in diagnosis.state.findings:
        found[finding.rule] = max(found.get(finding.rule, "note"), finding.severity, key=order.index)
    return found


def message_of(diagnosis: Diagnosis, rule: str) -> str:
    return next(finding.message for finding in diagnosis.state.findings if finding.rule == rule)


def read(path: Path, exit_code: int | None = None):
    """The reading and all of its events."""
    reading = detect.read(path, exit_code=exit_code, lines=OutputMatcher(needles(), rules_matching))
    return reading, [entry.event for entry in reading.entries]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]
