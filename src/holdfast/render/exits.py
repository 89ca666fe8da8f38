"""How an attempt ended, in a few words: the same in the panel and in every list of attempts."""

from __future__ import annotations

FURTHER = {
    "budget": "its time was used up",
    "supervisor gone": "its supervisor was killed",
}
"""Who ended it -> in words that say it all."""


def how_it_ended(*, code: int | None, signal: str | None, stopped_by: str | None, planned: str = "") -> str:
    if planned:
        return "ended on purpose, to go on in a fresh process"
    if stopped_by in FURTHER:
        return FURTHER[stopped_by]
    how = signal or (
        "finished" if code == 0 else f"exit {code}" if code is not None else "how it ended was not recorded"
    )
    if stopped_by in ("user", "terminate"):
        return f"{how}, as you asked"
    return how if stopped_by is None else f"{how}, stopped for {stopped_by}"
