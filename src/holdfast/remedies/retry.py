"""Rungs that change nothing: a fresh process goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext


def _fresh_process(now: RemedyContext) -> Remedy | None:
    # From the start the same would pile up again to the same end.
    if not now.progressed or not now.kept:
        return None
    return Remedy(
        "fresh-process",
        "A fresh process goes on from the last good state, with nothing changed: what had piled up in memory is gone, and "
        "the attempt had come further than any before it.",
    )


FRESH_PROCESS = RemedyStep(
    "fresh-process",
    "A fresh process goes on from the last good state, nothing changed, where something was saved and the attempt came further "
    "than any before it.",
    "nothing",
    _fresh_process,
)


def _as_it_is(now: RemedyContext) -> Remedy | None:
    if not now.progressed or now.again_before():
        return None
    return Remedy("as-it-is", "Once more as it is: what ended it may have been chance, and may not come again.")


AS_IT_IS = RemedyStep(
    "as-it-is",
    "Once more as it is, from the last good state, where the attempt made progress: it may have been chance. Once for each cause.",
    "nothing but the steps since then",
    _as_it_is,
)
