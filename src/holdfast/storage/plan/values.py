"""Checks of the values in a plan. Each message states what to write instead."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any

from holdfast.schema.devices import DEVICES
from holdfast.schema.plan import MAX_MEMORY_BYTES
from holdfast.storage.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.schema.values import Value

NAMES = {
    "whole": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "text": "a string in quotes",
    "list": "a list",
    "texts": "a list of strings",
    "table": "a table",
    "tables": "a list of tables",
}
_SUGGESTED_DEVICES = ("auto", "cpu", "mps", "cuda", "cuda:0", "0")
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGTkmgt]?[iI]?[bB])\s*")
MAX_DIGITS = 40
MIN_MEMORY = 256 * 10**6
"""Importing torch alone takes about this much."""


def check_value(value: Any, spec: Value) -> str | None:
    """Return what is wrong with the value, as a sentence that follows the key; None if it is valid."""
    if not any(_has_kind(value, kind) for kind in spec.kinds):
        return _describe_wrong_kind(value, spec)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _check_bounds(value, spec)
    if isinstance(value, str) and spec.choices and value not in spec.choices:
        by_lower = {choice.lower(): choice for choice in spec.choices}
        near = difflib.get_close_matches(value.lower(), by_lower, n=1)
        if near:
            return f"is {format_value(value)}: did you mean {format_value(by_lower[near[0]])}?"
        return f"is {format_value(value)}, but must be {_join_with_or(map(format_value, spec.choices))}"
    return None


def check_batch(value: Any) -> str | None:
    """Check a batch size. -1 and a fraction of the device memory let the framework choose the size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"is {format_value(value)}, but must be a whole number of images, for example 8"
    if isinstance(value, int) and (value >= 1 or value == -1):
        return None
    if isinstance(value, float) and 0 < value < 1:
        return None
    return (
        f"is {format_value(value)}, but must be 1 or more images, -1 for as many as fit, "
        "or a fraction of the device memory between 0 and 1"
    )


def check_device(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return None
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return None
    if isinstance(value, str):
        text = value.replace(" ", "")
        if text == "auto" or any(re.fullmatch(kind.pattern, text) for kind in DEVICES.values()):
            return None
        by_alias = [kind.name for kind in DEVICES.values() if value.lower() in kind.aliases]
        near = by_alias or difflib.get_close_matches(value.lower(), _SUGGESTED_DEVICES, n=1)
        if near:
            return f"is {format_value(value)}: did you mean {format_value(near[0])}?"
    return f'is {format_value(value)}, but must be "auto", "cpu", "mps", "cuda", or the number of a GPU such as 0'


def check_fraction(value: Any) -> str | None:
    """Check a fraction or number of images, or a list of these with one item per split."""
    values = value if isinstance(value, list) else [value]
    is_valid = bool(values) and len(values) <= 3
    for item in values:
        is_valid &= (type(item) is int and item >= 1) or (type(item) is float and 0 < item <= 1)
    return (
        None
        if is_valid
        else f"is {format_value(value)}, but must be a fraction above 0 and up to 1, or a number of images"
    )


def check_scale(value: Any) -> str | None:
    """Check how far images are scaled: a fraction, or a minimum and a maximum."""
    numbers = value if isinstance(value, list) else [value]
    is_valid = all(_has_kind(number, "number") and math.isfinite(number) and number >= 0 for number in numbers)
    is_valid &= len(numbers) == 2 if isinstance(value, list) else is_valid and value <= 1
    return (
        None
        if is_valid
        else f"is {format_value(value)}, but must be a number between 0 and 1, or two such as [0.5, 2.0]"
    )


def check_quantize(value: Any) -> str | None:
    """Check the precision. A training supports only this one; the others are for prediction and export."""
    if value in (8, "8", "int8", "w8a8") and not isinstance(value, bool):
        return None
    return f"is {format_value(value)}, but must be 8 (training for int8) or omitted in a training"


def parse_bytes(value: Any, total: int) -> int | str:
    """Return the bytes of "12 GB", "11.5 GiB" or "80%" of `total`; or a message if the value is invalid."""
    hint = 'write "12 GB", "11.5 GiB" or "80%"'
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return f"is {format_value(value)}, but needs a unit: {hint}"
    if len(match[1]) > MAX_DIGITS:
        return f"is {format_value(value)}: no machine has that much; {hint}"
    number, unit = float(match[1]), match[2].upper()
    if unit == "%":
        if not 0 < number <= 100:
            return f"is {format_value(value)}, but must be above 0% and at most 100%"
        return int(total * number / 100)
    amount = int(number * UNITS[unit])
    if amount > MAX_MEMORY_BYTES:
        return f"is {format_value(value)}: no machine has that much; {hint}"
    return amount if amount >= MIN_MEMORY else f"is {format_value(value)}: no training fits into that; {hint}"


def format_value(value: Any, most: int = 60, name: str = "") -> str:
    """Format a value as TOML, without secrets, shortened to `most` characters.

    `name` is the key, if the user chose it.
    """
    value = Redactor().value_for_message(value, name)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _has_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    if kind == "texts":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == "tables":
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    types: dict[str, Any] = {"whole": int, "number": (int, float), "text": str, "list": list, "table": dict}
    return kind in types and isinstance(value, types[kind])


def _describe_wrong_kind(value: Any, spec: Value) -> str:
    expected = _join_with_or(NAMES[kind] for kind in spec.kinds)
    hint = ""
    is_numeric = "whole" in spec.kinds or "number" in spec.kinds
    if isinstance(value, str) and is_numeric and _parse_number(value) is not None:
        hint = f"; remove the quotes: {value.strip()}"
    elif isinstance(value, str) and "bool" in spec.kinds and value.lower() in ("true", "false", "yes", "no"):
        hint = f"; write {'true' if value.lower() in ('true', 'yes') else 'false'}, without quotes"
    elif isinstance(value, float) and value.is_integer() and "whole" in spec.kinds:
        hint = f"; write {int(value)}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and spec.kinds == ("text",):
        hint = f'; write "{format_value(value)}"'
    return f"is {format_value(value)}, but must be {expected}{hint}"


def _check_bounds(value: float, spec: Value) -> str | None:
    low, high = spec.least, spec.most
    if math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high):
        return None
    if low is not None and high is not None:
        return f"is {format_value(value)}, but must be between {low:g} and {high:g}"
    bound = f"{low:g} or more" if low is not None else f"{high:g} or less" if high is not None else "a finite number"
    return f"is {format_value(value)}, but must be {bound}"


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _join_with_or(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
