"""The list of plan keys for docs/plans.md, generated from the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema.plan_keys import TABLES, TOP
from holdfast.storage.plan.values import NAMES, format_value

if TYPE_CHECKING:
    from holdfast.schema.plan_keys import Key, Table

BEGIN = "<!-- made from the code by `make docs`, from here -->"
END = "<!-- to here -->"


def with_keys(page: str) -> str:
    """Return the page with the part between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return "\n".join([f"{before}{BEGIN}", "", keys_as_markdown(), f"{END}{rest.partition(END)[2]}"])


def keys_as_markdown() -> str:
    return "\n".join(line for table in (TOP, *TABLES) for line in _section(table))


def _section(table: Table) -> list[str]:
    titles = {"": "Top-level keys", "stages": "`[[stages]]`", "stages.gate": "`[stages.gate]`"}
    lines = [f"### {titles.get(table.name, f'`[{table.name}]`')}", "", table.description, ""]
    if table.keys is None:
        return [*lines, "```toml", f"[{table.name}]", table.example, "```", ""]
    rows = [
        f"| `{key.name}` | {_holds(key)} | {_default(key)} | {key.description} | `{key.example}` |"
        for key in table.keys
    ]
    return [*lines, "| key | value | default | description | example |", "|---|---|---|---|---|", *rows, ""]


def _holds(key: Key) -> str:
    if key.name == "memory":
        return "a size with its unit, or a percentage"
    if key.holds.choices:
        return ", ".join(f"`{choice}`" for choice in key.holds.choices)
    kinds = " or ".join(NAMES[kind] for kind in key.holds.kinds)
    return f"{kinds}, {key.holds.least:g} or more" if key.holds.least is not None else kinds


def _default(key: Key) -> str:
    return "" if key.holds.default in (None, [], {}) else f"`{format_value(key.holds.default)}`"
