"""Collection of evidence from several sources, without raising."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def gather_evidence(gatherers: Iterable[tuple[str, Callable[[], Iterable[Evidence]]]]) -> list[Evidence]:
    evidence: list[Evidence] = []
    for name, gather in gatherers:
        evidence.extend(_run_safely(name, gather))
    return evidence


def _run_safely(name: str, gather: Callable[[], Iterable[Evidence]]) -> list[Evidence]:
    try:
        return list(gather())
    except Exception as error:  # noqa: BLE001 - this runs after a crash and must not cause another one
        return [Evidence("not readable", f"{name}: {type(error).__name__}: {error}")]
