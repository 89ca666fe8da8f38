"""Tools of older Pythons below a training: our sitecustomize is no syntax error there, and the user's own runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

from holdfast.supervisor.child_env import PROBE_FOLDER

SOURCE = PROBE_FOLDER / "sitecustomize.py"


def python2() -> str | None:
    found = sorted(Path.home().glob(".pyenv/versions/2.7*/bin/python"))
    return str(found[0]) if found else shutil.which("python2.7")


@pytest.mark.skipif(python2() is None, reason="there is no Python 2.7 here")
def test_the_users_own_sitecustomize_runs_under_python_2(tmp_path):
    """With its own names, as without us; and where there is none, nothing is said."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __name__, __file__\n")
    update = (
        "import sys; print(sys.theirs == ('sitecustomize', sys.modules['sitecustomize'].__file__)); print(sys.path)"
    )
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOLDFAST_ATTEMPT_DIR": str(tmp_path)}
    path = os.pathsep.join([str(PROBE_FOLDER), str(tmp_path)])
    done = subprocess.run(
        [python2(), "-c", update], env={**variables, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("True\n")
    assert str(PROBE_FOLDER) not in done.stdout
    alone = {**variables, "PYTHONPATH": str(PROBE_FOLDER)}
    done = subprocess.run([python2(), "-c", "print(1)"], env=alone, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_it_is_written_in_the_grammar_of_python_2():
    """A syntax error would be told by every Python 2 that starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lib2to3")
        from lib2to3 import pygram, pytree
        from lib2to3.pgen2 import driver

        driver.Driver(pygram.python_grammar, convert=pytree.convert).parse_string(SOURCE.read_text())
    assert not any(mark in SOURCE.read_text() for mark in ('f"', " -> ", "nonlocal"))


def test_without_importlib_it_goes_by_imp(monkeypatch):
    """The branch of Python 2, with an `imp` of the test's own: the other module takes our place while it is loaded."""
    loaded = []
    fake = types.ModuleType("imp")
    fake.find_module = lambda name, path: (None, "/theirs/sitecustomize.py", ("", "", 1))

    def load_module(name, file, path, description):
        assert "sitecustomize" not in sys.modules
        loaded.append((name, path))
        sys.modules[name] = "theirs"

    fake.load_module = load_module
    names: dict = {"__file__": str(SOURCE), "__name__": "sitecustomize"}
    monkeypatch.setitem(sys.modules, "imp", fake)
    monkeypatch.setitem(sys.modules, "sitecustomize", types.ModuleType("sitecustomize"))
    monkeypatch.setitem(sys.modules, "importlib.machinery", None)
    monkeypatch.delenv("HOLDFAST_ATTEMPT_DIR", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(compile(SOURCE.read_text(), str(SOURCE), "exec"), names)
    assert loaded == [("sitecustomize", "/theirs/sitecustomize.py")]
    assert sys.modules["sitecustomize"] == "theirs"
    fake.find_module = lambda *_: (_ for _ in ()).throw(ImportError)
    names["_run_other_sitecustomize"]()
    assert len(loaded) == 1
