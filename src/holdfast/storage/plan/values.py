"""Whether a value in a plan is one that its key may hold, said so that the next try is right."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any

from holdfast.schema.plan import MAX_MEMORY_BYTES
from holdfast.storage.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.schema.values import Value

NAMES = {
    "whole": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "text": "a text in quotes",
    "list": "a list",
    "texts": "a list of texts",
    "table": "a table",
    "tables": "a list of tables",
}
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?|-1|\d+(,\d+)*|(npu|xpu)(:\d+(,\d+)*)?")
DEVICES = ("auto", "cpu", "mps", "cuda", "cuda:0", "0")
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGTkmgt]?[iI]?[bB])\s*")
MAX_DIGITS = 40
MIN_MEMORY = 256 * 10**6
"""Importing torch alone takes about as much."""


def complaint(value: Any, holds: Value) -> str | None:
    """What is wrong with the value, to be read after its key; None where nothing is."""
    if not any(_is(value, kind) for kind in holds.kinds):
        return _wrong_kind(value, holds)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _outside(value, holds)
    if isinstance(value, str) and holds.choices and value not in holds.choices:
        by_lower = {choice.lower(): choice for choice in holds.choices}
        near = difflib.get_close_matches(value.lower(), by_lower, n=1)
        said = (
            f"did you mean {written(by_lower[near[0]])}?"
            if near
            else f"it takes {_either(map(written, holds.choices))}"
        )
        return f"is {written(value)}: {said}"
    return None


def batch_complaint(value: Any) -> str | None:
    """-1 and a share of the device's memory are what Ultralytics calls AutoBatch."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"is {written(value)}: it takes a whole number of images, e.g. 8"
    if isinstance(value, int) and (value >= 1 or value == -1):
        return None
    if isinstance(value, float) and 0 < value < 1:
        return None
    return (
        f"is {written(value)}: it takes 1 or more images, -1 for as many as fit, "
        "or a share of the device's memory between 0 and 1"
    )


def device_complaint(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return None
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return None
    if isinstance(value, str):
        if _DEVICE.fullmatch(value.replace(" ", "")):
            return None
        near = ["cuda"] if value.lower() == "gpu" else difflib.get_close_matches(value.lower(), DEVICES, n=1)
        if near:
            return f"is {written(value)}: did you mean {written(near[0])}?"
    return f'is {written(value)}: it takes "auto", "cpu", "mps", "cuda", or the number of a GPU such as 0'


def fraction_complaint(value: Any) -> str | None:
    """A share of the images, a count of them, or one of either for each split."""
    values = value if isinstance(value, list) else [value]
    fits = bool(values) and len(values) <= 3
    for item in values:
        fits &= (type(item) is int and item >= 1) or (type(item) is float and 0 < item <= 1)
    return None if fits else f"is {written(value)}: it takes a share above 0 and up to 1, or a number of images"


def scale_complaint(value: Any) -> str | None:
    """How far images grow and shrink: a share, or the least and the most."""
    numbers = value if isinstance(value, list) else [value]
    fits = all(_is(number, "number") and math.isfinite(number) and number >= 0 for number in numbers)
    fits &= len(numbers) == 2 if isinstance(value, list) else fits and value <= 1
    return None if fits else f"is {written(value)}: it takes a number between 0 and 1, or two such as [0.5, 2.0]"


def quantize_complaint(value: Any) -> str | None:
    """A training knows this one precision; the others are for prediction and export."""
    if value in (8, "8", "int8", "w8a8") and not isinstance(value, bool):
        return None
    return f"is {written(value)}: in a training it takes 8 (training for whole numbers of 8 bits), or is left out"


def bytes_in(value: Any, whole: int) -> int | str:
    """Bytes of "12 GB", "11.5 GiB" or "80%" of what there is; or what is wrong with it."""
    how = 'write "12 GB", "11.5 GiB" or "80%"'
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return f"is {written(value)}: an amount needs its unit: {how}"
    if len(match[1]) > MAX_DIGITS:
        return f"is {written(value)}: no machine has that much; {how}"
    number, unit = float(match[1]), match[2].upper()
    if unit == "%":
        if not 0 < number <= 100:
            return f"is {written(value)}: a share lies above 0% and up to 100%"
        return int(whole * number / 100)
    amount = int(number * UNITS[unit])
    if amount > MAX_MEMORY_BYTES:
        return f"is {written(value)}: no machine has that much; {how}"
    return amount if amount >= MIN_MEMORY else f"is {written(value)}: no training fits into that; {how}"


def written(value: Any, most: int = 60, name: str = "") -> str:
    """As TOML writes it, without secrets, cut where it is longer than that. `name`: the key, where that is the user's own."""
    value = Redactor().given(value, name)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    if kind == "texts":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == "tables":
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    types: dict[str, Any] = {"whole": int, "number": (int, float), "text": str, "list": list, "table": dict}
    return kind in types and isinstance(value, types[kind])


def _wrong_kind(value: Any, holds: Value) -> str:
    takes = _either(NAMES[kind] for kind in holds.kinds)
    hint = ""
    numeric = "whole" in holds.kinds or "number" in holds.kinds
    if isinstance(value, str) and numeric and _number(value) is not None:
        hint = f"; leave out the quotes: {value.strip()}"
    elif isinstance(value, str) and "bool" in holds.kinds and value.lower() in ("true", "false", "yes", "no"):
        hint = f"; write {'true' if value.lower() in ('true', 'yes') else 'false'}, without quotes"
    elif isinstance(value, float) and value.is_integer() and "whole" in holds.kinds:
        hint = f"; write {int(value)}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and holds.kinds == ("text",):
        hint = f'; write "{written(value)}"'
    return f"is {written(value)}: it takes {takes}{hint}"


def _outside(value: float, holds: Value) -> str | None:
    low, high = holds.least, holds.most
    if math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high):
        return None
    if low is not None and high is not None:
        return f"is {written(value)}: it lies between {low:g} and {high:g}"
    bound = f"{low:g} or more" if low is not None else f"{high:g} or less" if high is not None else "a finite number"
    return f"is {written(value)}: it takes {bound}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
