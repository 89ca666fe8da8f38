"""`make docs`: write the pages generated from the code. With --check, only report pages that are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.render import checks, remedies
from holdfast.render.plan_keys import with_keys
from holdfast.render.rules import as_markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"


def commands_page() -> str:
    """Return the --help of every command, as printed at 100 columns."""
    parts = [
        "# Commands",
        "",
        "Generated from `--help` by `make docs`. A test checks that this page is up to date.",
        "",
    ]
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    for command in ((), *((name,) for name in names)):
        result = CliRunner().invoke(app, [*command, "--help"], terminal_width=100, prog_name="holdfast")
        text = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        parts += [f"## holdfast {' '.join(command)}".rstrip(), "", "```text", text, "```", ""]
    return "\n".join(parts)


def plans_page() -> str:
    """Return plans.md, which is written by hand except for its tables of keys."""
    return with_keys((DOCS / "plans.md").read_text())


def pages() -> dict[Path, str]:
    return {
        DOCS / "rules.md": as_markdown(),
        DOCS / "checks.md": checks.as_markdown(),
        DOCS / "remedies.md": remedies.as_markdown(),
        DOCS / "commands.md": commands_page(),
        DOCS / "plans.md": plans_page(),
    }


def main() -> int:
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is out of date: make docs")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
