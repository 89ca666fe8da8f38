"""What is written for people is true: generated pages are up to date, links lead somewhere, names are held."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "bench" / "overhead" / "README.md",
]


def test_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_exported_names():
    """The package's surface: a name added here is a promise."""
    public = {name for name in vars(holdfast) if not name.startswith("_")}
    packages = {folder.name for folder in (ROOT / "src" / "holdfast").iterdir() if (folder / "__init__.py").exists()}
    assert public <= packages | {"annotations", "probe"}


def test_guard_is_all_that_a_program_may_add():
    assert holdfast.guard.__name__ == "guard"
    with pytest.raises(AttributeError, match="no attribute 'guards'"):
        _ = holdfast.guards


def test_readme_shows_a_real_panel():
    readme = (ROOT / "README.md").read_text()
    assert "╭─  holdfast · shapes" in readme
    assert "PANEL" not in readme


def test_versions_agree():
    assert f'version = "{holdfast.__version__}"' in (ROOT / "pyproject.toml").read_text()
