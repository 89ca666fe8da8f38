"""One mistake in a plan file: where it is, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.storage.plan.toml_lines import KeyPath

HOLDFAST_KEYS = {
    "val_period": "[validation] every",
    "val_interval": "[validation] every",
    "val_every": "[validation] every",
    "val_batch": "[validation] batch",
    "val_max_det": "[validation] max_det",
    "best_by": "[validation] best_by",
    "max_attempts": "[budget] attempts",
    "max_memory": "[budget] memory",
    "max_hours": "[budget] hours",
    "devices": "[policy] devices",
    "clear_cache": "the table [clear_cache]",
}
"""Names that are often mistaken for settings of a framework, and the Holdfast keys for them."""


class Mistake(NamedTuple):
    path: KeyPath
    message: str
    """A sentence that follows the key named by the path."""


def describe_place(table: str) -> str:
    if not table:
        return "to the top of the file, before the first [table]"
    return {"stages": "to [[stages]]", "stages.gate": "to the gate of a stage"}.get(table, f"to [{table}]")
