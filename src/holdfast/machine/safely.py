"""Several gatherers of evidence as one that cannot raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def gather_evidence(gatherers: Iterable[tuple[str, Callable[[], Iterable[Evidence]]]]) -> list[Evidence]:
    found: list[Evidence] = []
    for name, gather in gatherers:
        found.extend(_run_safely(name, gather))
    return found


def _run_safely(name: str, gather: Callable[[], Iterable[Evidence]]) -> list[Evidence]:
    try:
        return list(gather())
    except Exception as error:  # noqa: BLE001 - evidence is looked for after a death: nothing here may cause a second one
        return [Evidence("not readable", f"{name}: {type(error).__name__}: {error}")]
