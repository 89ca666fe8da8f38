"""Text that several views share: text from other programs made safe, numbers, and how an attempt ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.checkpoints import checkpoints
from holdfast.diagnosis.goodput import lost_steps
from holdfast.probe.holdfast_probe.redact import readable
from holdfast.process.output_log import ESCAPES
from holdfast.schema import exits
from holdfast.schema.json_text import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.verdicts import Change

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
STOP_REASONS = {
    "user": "stopped by you",
    "terminate": "stopped by SIGTERM",
    "budget": "time budget used up",
    "supervisor gone": "supervisor was killed",
}
"""What stopped an attempt -> its complete description."""
BEST = re.compile(r"(?:.*[\\/])?best\.(?:pt|pth|ckpt)")


def printable(text: str, max_length: int = 400) -> str:
    """Return one line without escape sequences, control characters or bidirectional overrides, cut at `max_length`."""
    text = readable(text[: 16 * max_length])  # do not search text that will be cut anyway
    line = UNSAFE.sub("", _CONTROL.sub("", ESCAPES.sub("", text))).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def describe_change(change: Change) -> str:
    """`batch 16 -> 8 (half the memory of a step)`"""
    why = f" ({change.why})" if change.why else ""
    costs = f"; cost: {change.costs}" if change.costs else ""
    return f"{change.setting} {_format_value(change.before)} -> {_format_value(change.after)}{why}{costs}"


def _format_value(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def format_shares(buckets: Mapping[str, float]) -> str:
    """`training 91%, restart 6%, lost work 2%`: where the time went, largest first, without shares below 1%."""
    total = sum(buckets.values())
    ordered = sorted(buckets.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{name.replace('_', ' ')} {seconds / total:.0%}" for name, seconds in ordered if seconds >= 0.01 * total > 0
    )


# --- attempts ---------------------------------------------------------------------------------------------------------


def describe_exit(*, code: int | None, signal: str | None, stopped_by: str | None, planned: str = "") -> str:
    """How an attempt ended, in a few words."""
    if planned:
        return "stopped by Holdfast, to resume in a new process"
    if stopped_by is not None:
        return STOP_REASONS.get(stopped_by, f"stopped by Holdfast because of {stopped_by}")
    return (
        "exit not recorded"
        if code is None and signal is None
        else exits.describe_exit(code, signal).removeprefix("was ")
    )


def describe_saved(attempt: AttemptState, shown: int = 4) -> str:
    """Which checkpoints were backed up after the attempt, and where. Empty if there are none."""
    files = attempt.backed_up.files if attempt.backed_up is not None else []
    if not files:
        return ""
    names = [file.path.rpartition("/")[2] + (" (truncated)" if file.torn else "") for file in files[:shown]]
    more = f" and {len(files) - shown} more" if len(files) > shown else ""
    return f"{', '.join(names)}{more} in attempts/{attempt.number}/saved"


def describe_repeated_work(attempt: AttemptState, following: AttemptState | None) -> str:
    """Which steps of an attempt the next one repeated, and whether they gave the same losses. Empty if no work was lost.

    The heartbeat counts steps, up to the crash. Losses are compared by batch, which can be part of a step, and the last loss
    may not have been written. So the two numbers can differ.
    """
    lost = lost_steps(attempt, following)
    replayed = following.snapshots.replayed if following is not None else None
    parts = [f"{plural(lost, 'step')} had to be repeated"] if lost else []
    if replayed is not None and replayed.differs_at is None:
        batches = plural(replayed.compared, "repeated batch", "repeated batches")
        parts.append(f"the losses of {batches} are bit-identical to the original ones")
    elif replayed is not None:
        parts.append(f"the repeated losses differ from the original ones, starting at step {replayed.differs_at}")
    return "; ".join(parts)


# --- results ----------------------------------------------------------------------------------------------------------


def best_weights(state: RunState) -> str | None:
    """The newest file saved as the best weights, if it is usable."""
    named = [checkpoint for checkpoint in checkpoints(state) if BEST.fullmatch(checkpoint.path)]
    return named[-1].path if named and named[-1].usable else None


def _results_folder_of(attempt: AttemptState) -> str | None:
    folder = attempt.settings.get("save_dir")
    return str(folder) if folder else None


def results_folder(state: RunState) -> str | None:
    """The framework's results folder of the newest attempt, with a note if the attempt before used another folder."""
    folder = next((found for attempt in reversed(state.attempts) if (found := _results_folder_of(attempt))), None)
    if folder is None:
        return None
    changed = describe_folder_change(state)
    return folder if changed is None else f"{folder} ({changed})"


def describe_folder_change(state: RunState) -> str | None:
    """Say that the newest attempt writes to a new folder: a trainer that its own command starts over can create one."""
    known = [(attempt, found) for attempt in state.attempts if (found := _results_folder_of(attempt))]
    if len(known) < 2 or known[-1][1] == known[-2][1]:
        return None
    (before, earlier), (now, _) = known[-2:]
    started_over = "started over and " if now.starts_over else ""
    return f"attempt {now.number} {started_over}writes to a new folder; attempt {before.number} wrote to {earlier}"
