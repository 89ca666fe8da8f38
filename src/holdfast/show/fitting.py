"""What fits into memory, for people and for tools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.show.plain import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.act.fitting import Answer

SHOWN = (320, 416, 512, 640, 960, 1280)


def teller() -> Callable[[str], None]:
    """Says what is being measured: a trial takes longer than two seconds."""
    return lambda words: print(f"holdfast: {words} ...", file=sys.stderr, flush=True)


def print_answer(answer: Answer | str, *, as_json: bool) -> int:
    """The exit status: 3 where there is no answer, or where nothing fits."""
    if isinstance(answer, str):
        print(msgspec.json.encode({"error": answer}).decode() if as_json else answer)
        return 3
    told = as_values(answer)
    if as_json:
        print(msgspec.json.encode(told).decode())
    else:
        for one in answer.measured:
            print(
                f"  measured: batch {one.batch:3d} at {one.size} px holds {size(one.peak)}, {duration(one.step_s)} a step"
            )
        print(f"  {size(answer.limit)} may be used; {size(answer.base)} are needed however small the batch is")
        for row in told["fits"]:
            batch = row["largest_batch"]
            needs = f"batch {batch}, about {size(row['peak'])}" if batch is not None else "not even a batch of 1"
            print(f"  {row['imgsz']:5d} px: {needs}")
    return 0 if any(row["largest_batch"] is not None for row in told["fits"]) else 3


def as_values(answer: Answer) -> dict[str, Any]:
    sizes = sorted({*SHOWN, *(one.size for one in answer.measured)})
    rows = [{"imgsz": pixels, "largest_batch": answer.largest_batch(pixels)} for pixels in sizes]
    for row in rows:
        batch = row["largest_batch"]
        row["peak"] = round(answer.peak(batch, row["imgsz"])) if batch is not None else None  # type: ignore[arg-type]
    return {"limit": answer.limit, "measured": [msgspec.to_builtins(one) for one in answer.measured], "fits": rows}
