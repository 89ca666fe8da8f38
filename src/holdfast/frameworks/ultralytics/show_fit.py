"""Which batch and image sizes fit into memory, for people and for tools."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.render.console import print_json, print_line, say
from holdfast.render.text import printable
from holdfast.schema.units import duration, size

if TYPE_CHECKING:
    from holdfast.frameworks.ultralytics.batch_finder import Answer
    from holdfast.frameworks.ultralytics.short_run import Measurement

SHOWN = (320, 416, 512, 640, 960, 1280)


def print_progress(measuring: str) -> None:
    """Print what is being measured: each short run takes longer than two seconds."""
    say(f"{measuring} ...")


def print_answer(answer: Answer | str, *, as_json: bool) -> int:
    """Print the answer. Return the exit status: 3 if there is no answer or nothing fits."""
    if isinstance(answer, str):
        if as_json:
            print_json({"error": answer})
        else:
            print_line(answer)
        return 3
    values = as_values(answer)
    if as_json:
        print_json(values)
    else:
        _print(answer, values)
    return 0 if any(row["largest_batch"] is not None for row in values["fits"]) else 3


def _print(answer: Answer, values: dict[str, Any]) -> None:
    for one in answer.measured:
        print_line(
            f"  tried: batch {one.batch:3d} at {one.size:4d} px used {size(_used(answer, one))}, {_time_per_batch(one)}"
        )
    for batch, side, why in answer.too_large:
        print_line(f"  tried: batch {batch:3d} at {side:4d} px does not fit: {printable(why, 200)}")
    if (without := answer.without_mosaic) is not None:
        kept = next(one for one in answer.measured if (one.batch, one.size) == (without.batch, without.size))
        print_line(
            f"  without mosaic, batch {without.batch} at {without.size} px: {_compare(_used(answer, without) - _used(answer, kept))}"
            f" memory, {_time_per_batch(without)}"
        )
    print_line(
        f"  {size(answer.limit)} of {answer.memory_kind} may be used; {size(answer.base)} is needed for any batch size"
    )
    for row in values["fits"]:
        batch = row["largest_batch"]
        needs = f"batch {batch}, about {size(row['peak'])}" if batch is not None else "even a batch of 1 does not fit"
        print_line(f"  {row['imgsz']:5d} px: {needs}")
    best = answer.recommended
    if best is None:
        print_line("No tested size fits: close other programs, or use a smaller model.")
    else:
        print_line(
            f"Use batch = {best.batch}, imgsz = {best.size}. The measured memory usage was {size(_used(answer, best))}."
        )


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


def _used(answer: Answer, one: Measurement) -> int:
    return one.peak if one.device is None or answer.memory_kind == "memory" else one.device[1]


def _time_per_batch(one: Measurement) -> str:
    return f"{duration(one.wall.batch)} per batch"


def _compare(amount: float) -> str:
    return f"{size(abs(amount))} {'less' if amount < 0 else 'more'}"
