"""Output of `holdfast init`: the plan it wrote for a dataset and this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.render.console import print_json, print_line
from holdfast.schema.shell_text import shell_quote

if TYPE_CHECKING:
    from holdfast.frameworks.ultralytics.draft_plan import PlanDraft


def show(draft: PlanDraft, *, as_json: bool) -> None:
    run = f"holdfast run {shell_quote(draft.path)}"
    if as_json:
        fields = {
            "plan": str(draft.path),
            "data": str(draft.data),
            "images": draft.images,
            "classes": draft.classes,
            "device": draft.device,
            "problems": draft.problems,
            "notes": draft.notes,
            "next": run,
        }
        print_json(fields)
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in draft.images.items())
    classes = f"{draft.classes} class{'es' if draft.classes > 1 else ''}"
    print_line(f"Wrote {draft.path}: {draft.data} ({counts}; {classes}) on {draft.device}, in two stages.")
    for note in draft.notes:
        print_line(f"  note: {note}")
    for problem in draft.problems:
        print_line(f"  fix first: {problem}")
    print_line(f"Read it, then: {run}")
