"""Plan files that are too much: refused with a sentence before anything takes long or recurses."""

from __future__ import annotations

import os
import re
import sys

import pytest

from holdfast.schema.errors import HoldfastError, PlanInvalid, UnknownRun
from holdfast.schema.plan import Plan, from_toml, to_toml
from holdfast.storage import folder
from holdfast.storage.plan import text as plan_text
from holdfast.storage.plan.load import read
from holdfast.storage.plan.toml_bounds import MAX_DEPTH, MAX_KEY_PARTS, MAX_VALUES, find_excess
from holdfast.storage.plan_copy import read_plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOSTILE = {
    "dotted key": ".".join("a" * 200_000) + " = 1",
    "dotted header": "[" + ".".join("a" * 200_000) + "]",
    "dotted key in a table": "x = { " + ".".join("a" * 200_000) + " = 1 }",
    "quoted parts": ".".join(['"a"'] * 100_000) + " = 1",
    "nested lists": "x = " + "[" * 100_000 + "]" * 100_000,
    "nested tables": "x = " + "{ a = " * 100_000 + "1" + " }" * 100_000,
    "unclosed lists": "x = " + "[" * 100_000,
    "many keys": "\n".join(f"k{n} = 1" for n in range(50_000)),
    "many items": "[policy]\nmay_change = [" + '"x",' * 200_000 + "]",
    "long integer": "grace_s = " + "9" * 5000,
    "long negative integer": "grace_s = -" + "9" * 5000,
    "long hexadecimal": "grace_s = 0x" + "f" * 5000,
    "long integer in a list": "command = [ 1, " + "9" * 5000 + "]",
}


@pytest.fixture
def no_reader(monkeypatch):
    def called(text):
        raise AssertionError(f"the reader was given {len(text)} characters")

    monkeypatch.setattr(plan_text.tomllib, "loads", called)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_plan_never_reaches_the_reader(tmp_path, no_reader, text):
    """Each is refused in one pass over the text, with its line, and the standard reader never sees it."""
    path = tmp_path / "plan.toml"
    path.write_text('name = "x"\n' + text)
    with pytest.raises(PlanInvalid, match="not a plan") as told:
        read(path)
    assert re.search(r"line \d", told.value.what)
    assert len(told.value.what) < 1000


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.startswith("many")])
def test_hostile_plan_of_a_run_is_refused_at_resume(tmp_path, name):
    """The same in the plan that a run folder keeps: a sentence, no traceback. (Many words are no harm: a command may have them.)"""
    text = HOSTILE[name]
    run = folder.create(["python"], root=tmp_path)
    run.plan.write_text('command = ["x"]\ncwd = "/"\n' + text)
    with pytest.raises(HoldfastError) as told:
        read_plan(run, [])
    assert told.value.exit_status == 2


def test_text_in_strings_and_comments_is_not_counted():
    """Brackets, dots and digits inside of strings and comments are no structure."""
    noise = "[" * 100 + "." * 100 + "9" * 100
    text = f"""a = "{noise}"
b = '{noise}'
# {noise}
c = \"\"\"{noise}
"" {noise} \\" {noise}\"\"\"
d = '''{noise}
'' {noise}'''
"{noise}".x = 1
"""
    assert tomllib.loads(text)
    assert find_excess(text) is None


def test_bounds_leave_room_for_honest_plans():
    """At each bound a text passes and is read; one more is refused."""
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    for text in (
        ".".join("a" * MAX_KEY_PARTS) + " = 1",
        f"x = {deep}",
        "x = [" + "1," * (MAX_VALUES - 1) + "]",
        "x = 0b" + "1" * 64,
        "x = 1979-05-27T07:32:00.999999-07:00",
        "x = 3.141592653589793238462643383279502884197169399375105820974944592307816",
    ):
        assert find_excess(text) is None, text[:40]
        assert tomllib.loads(text)
    assert find_excess(".".join("a" * (MAX_KEY_PARTS + 1)) + " = 1") == (1, "a key has more than 16 parts")
    assert find_excess(f"\n\nx = [{deep}]")[0] == 3
    assert find_excess("x = [" + "1," * MAX_VALUES + "]") is not None


@pytest.mark.parametrize("opener", ['"""', "'''", '"', "'"])
def test_strings_that_are_never_closed_end_the_pass(opener):
    """The pass stops at the first: looking for its end again and again would take the square of the time."""
    text = f"x = {opener}" + ("\\" + opener) * 1000
    assert find_excess(text) is None


def test_many_mistakes_are_told_up_to_a_bound(tmp_path):
    """A plan full of mistakes: the first fifty are told, and that there are more."""
    path = tmp_path / "plan.toml"
    path.write_text('command = "x"\n' + "\n".join(f"mistake{n} = 1" for n in range(3000)))
    with pytest.raises(PlanInvalid, match="more than 50 mistakes") as told:
        read(path)
    assert told.value.what.count("\n") == 50


@pytest.mark.parametrize("key", ["cwd", "python"])
@pytest.mark.parametrize("home", ["~nosuchuser/x", "~"])
def test_home_that_is_not_known(tmp_path, monkeypatch, key, home):
    """`~nosuchuser`, or `~` where there is neither HOME nor an entry for this user: a mistake with its line."""

    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("pwd.getpwnam", unknown)
    path = tmp_path / "plan.toml"
    path.write_text(f'command = "x"\n{key} = "{home}"\n')
    with pytest.raises(PlanInvalid, match=f'line 2: {key} is "{home}": this home folder is unknown'):
        read(path)


def test_home_that_is_known_is_put_in(tmp_path, monkeypatch):
    """As ever where there is one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "plan.toml"
    path.write_text('command = "x"\ncwd = "~/here"\n')
    assert read(path).cwd == str(tmp_path / "here")


def test_zero_byte_in_a_path(tmp_path):
    """No path can have one: a mistake, not a traceback later on."""
    path = tmp_path / "plan.toml"
    path.write_text('command = "x"\ncwd = "a\\u0000b"\n')
    with pytest.raises(PlanInvalid, match="line 2: cwd contains a NUL byte"):
        read(path)


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_plan_of_a_run_that_is_no_file(tmp_path, kind):
    """A FIFO, a device or a folder as plan.toml: `resume` says so and does not wait."""
    run = folder.create(["python"], root=tmp_path)
    if kind == "fifo":
        os.mkfifo(run.plan)
    elif kind == "zero":
        run.plan.symlink_to("/dev/zero")
    else:
        run.plan.mkdir()
    with pytest.raises(UnknownRun, match=r"cannot be read.*not a regular file"):
        read_plan(run, [])


def test_command_with_as_many_words_as_a_command_line_can_have(tmp_path):
    """A kept plan is larger than a plan file may be where the command is long, and is read all the same."""
    run = folder.create(["python"], root=tmp_path)
    plan = Plan(cwd="/", command=["python", "t.py", *(f"file-{n}.png" for n in range(60_000))])
    run.plan.write_text(to_toml(plan))
    assert read_plan(run, []).command == plan.command


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "9" * 5000])
def test_from_toml_raises_a_sentence(value):
    """Also without the bounds before it."""
    with pytest.raises(PlanInvalid, match="cannot be read"):
        from_toml(f'command = ["x"]\ncwd = "/"\ngrace_s = {value}')
