"""What fits into memory, for people and for tools."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.units import size
from holdfast.render.console import print_json, print_line, say
from holdfast.render.text import duration, printable

if TYPE_CHECKING:
    from holdfast.preflight.batch_finder import Answer
    from holdfast.preflight.short_run import Measurement

SHOWN = (320, 416, 512, 640, 960, 1280)


def print_progress(measuring: str) -> None:
    """Print what is being measured: each short run takes longer than two seconds."""
    say(f"{measuring} ...")


def print_answer(answer: Answer | str, *, as_json: bool) -> int:
    """The exit status: 3 where there is no answer, or where nothing fits."""
    if isinstance(answer, str):
        if as_json:
            print_json({"error": answer})
        else:
            print_line(answer)
        return 3
    told = as_values(answer)
    if as_json:
        print_json(told)
    else:
        _print(answer, told)
    return 0 if any(row["largest_batch"] is not None for row in told["fits"]) else 3


def _print(answer: Answer, told: dict[str, Any]) -> None:
    for one in answer.measured:
        print_line(f"  tried: batch {one.batch:3d} at {one.size:4d} px held {size(_held(answer, one))}, {_pace(one)}")
    for batch, side, why in answer.too_large:
        print_line(f"  tried: batch {batch:3d} at {side:4d} px does not fit: {printable(why, 200)}")
    if (without := answer.without_mosaic) is not None:
        kept = next(one for one in answer.measured if (one.batch, one.size) == (without.batch, without.size))
        print_line(
            f"  without mosaic, batch {without.batch} at {without.size} px: {_more(_held(answer, without) - _held(answer, kept))}"
            f" memory, {_pace(without)}"
        )
    print_line(
        f"  {size(answer.limit)} of {answer.memory_kind} may be used; {size(answer.base)} are needed however small the batch is"
    )
    for row in told["fits"]:
        batch = row["largest_batch"]
        needs = f"batch {batch}, about {size(row['peak'])}" if batch is not None else "not even a batch of 1"
        print_line(f"  {row['imgsz']:5d} px: {needs}")
    best = answer.recommended
    if best is None:
        print_line("Nothing that was tried leaves enough room: close other programs, or take a smaller model.")
    else:
        print_line(f"Take batch = {best.batch}, imgsz = {best.size}: tried, and held {size(_held(answer, best))}.")


def as_values(answer: Answer) -> dict[str, Any]:
    sizes = sorted({*SHOWN, *(one.size for one in answer.measured)})
    rows: list[dict[str, Any]] = [{"imgsz": side, "largest_batch": answer.largest_batch(side)} for side in sizes]
    for row in rows:
        batch = row["largest_batch"]
        row["peak"] = round(answer.peak(batch, row["imgsz"])) if batch is not None else None
    best = answer.recommended
    return {
        "limit": answer.limit,
        "of": answer.memory_kind,
        "measured": [asdict(one) for one in answer.measured],
        "too_large": [{"batch": batch, "imgsz": side, "why": why} for batch, side, why in answer.too_large],
        "without_mosaic": asdict(answer.without_mosaic) if answer.without_mosaic is not None else None,
        "fits": rows,
        "recommended": None if best is None else {"batch": best.batch, "imgsz": best.size, "peak": best.peak},
    }


def _held(answer: Answer, one: Measurement) -> int:
    return one.peak if one.device is None or answer.memory_kind == "memory" else one.device[1]


def _pace(one: Measurement) -> str:
    return f"{duration(one.wall.batch)} a batch"


def _more(amount: float) -> str:
    return f"{size(abs(amount))} {'less' if amount < 0 else 'more'}"
