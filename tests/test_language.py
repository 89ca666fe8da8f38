"""The code and the docs use the usual terms: old names are gone, and words of a private dialect do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "holdfast"


def words(text):
    return set(text.split())


OLD_PACKAGES = words(
    """
    act child foreign holdfast_child judge ladder lab looks monitors observe oracle pictures record rehearsal
    show trials words
    """
)
OLD_MODULES = words(
    """
    advice ahead alike amounts carried choosing_device claim claiming cloning collection compiled conducting
    content copies costs course curve death device_kind diagnosing difference disk_need doors done_again
    drafting drafts draws drawing earlier ending endings exact fitting forecast forecasting foresight
    forgetting frame frames gap gather giving_back going_on ground grounding held honest hooks imports
    interpreters judged keyboard_pump known known_loaders ladders last launching leaks leaving ledger lies
    likeness line_start line_watch live loading loop masking movement names needs noise notices numerics
    objective objects observe offspring one_batch opening orphan outlook own_journal own_state output_pump
    pace passes picture pictures places planned plots quick randomness rates reading recognise recorded
    recorder records rehearsing reload reloading reserve results resumable revalidate
    revalidating rows running sameness saves scalars schedules seam selection settings_checking shared
    situation slowness split_writing stage_plan step_agreement supervised surroundings surveyed taking tested
    theory torn trace trial trial_figures tuning turns typical ultralytics_home uncleared updates usable vault
    watch watcher whereabouts wishes wording world writer
    """
)
"""Old names of modules that no module has today."""
OLD_NAMES = words(
    """
    Asked Asker AttemptPicture Carried Carrying Conductor Course Departure Draft Exact Ground Held
    HeldInWorker Here Leaving Look Measured Narrator Picture Rehearsed Rung Said Situation Spread StageCourse
    Surroundings Told Tried Wishes Hello Goodbye Observed Uncleared Movement Quiet Remark Printed Vaulted
    going_on if_it_fits lineage max_loss max_loss_s most_lost mean_life of_now says teller withdrawn
    """
)
OLD_NAME_SHAPES = re.compile(r"_?(MOST|LEAST|LONGEST|SHORTEST|LARGEST|SMALLEST)_[A-Z]\w*")
OLD_STRINGS = words(
    """
    hello goodbye observed uncleared movement remark printed vaulted snapshot-torn --max-loss --beside
    HOLDFAST_MOST_LOST HOLDFAST_MEAN_LIFE HOLDFAST_OTHERWISE
    """
)
"""Event tags, options and environment variables."""

DIALECT = {
    r"(go|goes|going|gone|went) on\b(?! (the|a|to the) (disk|device|cpu|path))": "continue, resume",
    r"mend(s|ed|ing)?\b": "fix",
    r"pictures?\b": "image, or run state",
    r"unharmed|spoil(s|ed|t|ing)?\b": "uninterrupted, corrupt",
    r"rungs?\b|ladders?\b": "remedy step, remedies",
    r"rehears\w*|oracles?\b": "dry run, operator check",
    r"offspring|whereabouts|surroundings|narrat\w+|(?<!hashicorp )vault(s|ed)?\b(?! login)": "descendants, location, environment",
    r"beside\b": "next to, in addition to, compared with",
    r"gave it back|giv(es|ing|en) back": "restore",
    r"last words": "last output, last lines",
    r"is told of|are told of|was told of|to be told\b|tells? of\b|telling of\b": "reported",
    r"none of ours|of ours\b": "not created by Holdfast",
    r"dear(er|est)?\b": "expensive",
    r"storms?\b": "repeated kills",
    r"at hand\b": "current",
}
"""A pattern, at the beginning of a word -> what to write instead."""
QUOTED = {
    "frameworks/ultralytics/setting_values.py": "made from another project's files",
    "probe/holdfast_probe/secret_shapes.py": "names of vendors",
    "probe/holdfast_probe/secret_names.py": "names of vendors and programs",
    "probe/holdfast_probe/secret_programs.py": "names of programs",
    "probe/holdfast_probe/redact.py": "names of databases and programs",
}
"""Files that quote the words of others."""


def modules():
    return sorted(path for path in SRC.rglob("*.py") if "__pycache__" not in path.parts)


def tokens(path, *kinds):
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type in kinds:
            yield token


def pages():
    """What people read: the documentation, and templates of pages."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [*named, *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("bench/*/README.md")), *SRC.rglob("*.j2")]


def test_no_package_or_module_has_an_old_name():
    """Every old path of the redesign's tables is gone."""
    found = [str(path.relative_to(SRC)) for path in SRC.rglob("*") if path.is_dir() and path.name in OLD_PACKAGES]
    found += [str(path.relative_to(SRC)) for path in modules() if path.stem in OLD_MODULES]
    assert not found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_no_old_name_is_left_in_the_code(path):
    """Neither as a name, nor as an event tag, an option or an environment variable."""
    found = [
        f"line {token.start[0]}: {token.string}"
        for token in tokens(path, tokenize.NAME)
        if token.string in OLD_NAMES or OLD_NAME_SHAPES.fullmatch(token.string)
    ]
    found += [
        f"line {token.start[0]}: {token.string}"
        for token in tokens(path, tokenize.STRING)
        if token.string.strip("rbf\"'") in OLD_STRINGS
    ]
    assert not found


def dialect_in(text):
    for pattern, instead in DIALECT.items():
        for match in re.finditer(rf"(?<![\w-]){pattern}", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start())
            yield line, match.group(0), instead


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_strings_and_comments_are_plain(path):
    """Docstrings, messages and comments use the usual terms."""
    if str(path.relative_to(SRC)) in QUOTED:
        pytest.skip(QUOTED[str(path.relative_to(SRC))])
    found = [
        f"line {token.start[0] + line}: {word!r}: write {instead}"
        for token in tokens(path, tokenize.STRING, tokenize.COMMENT)
        for line, word, instead in dialect_in(token.string)
    ]
    assert not found


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain(path):
    found = [
        f"line {line + 1}: {word!r}: write {instead}"
        for line, word, instead in dialect_in(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_word_list_finds_the_dialect():
    """So that the tests above can fail."""
    text = "It goes on from there.\nMend the picture that is beside it."
    assert [(line, word) for line, word, _ in dialect_in(text)] == [
        (0, "goes on"),
        (1, "Mend"),
        (1, "picture"),
        (1, "beside"),
    ]
