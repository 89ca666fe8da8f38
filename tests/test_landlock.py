"""A dry run changes no file of the user's, whoever writes; what cannot be prevented is told, and what is prevented is no fault."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.machine import this_machine
from holdfast.preflight.checks import by_id
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.runner import run_all
from holdfast.preflight.dry_run import environment, landlock, run
from holdfast.preflight.dry_run.run import build_confined_command, run_in_scratch
from holdfast.probe.holdfast_probe.dry_run.write_guard import WriteGuard

if TYPE_CHECKING:
    from pathlib import Path

needs_landlock = pytest.mark.skipif(landlock.why_unavailable() is not None, reason=str(landlock.why_unavailable()))

WAYS = """
import ctypes, json, mmap, os, pathlib, shutil, sqlite3, subprocess, sys
outside, scratch = sys.argv[1], os.getcwd()
os.makedirs("made")
def there(name):
    return os.path.join(outside, name)
def sh(words):
    subprocess.run(words, shell=True, stderr=subprocess.DEVNULL, check=False)
def database():
    with sqlite3.connect(there("sqlite3.db")) as connection:
        connection.execute("insert into t values (2)")
def mapped():
    with open(there("mmap"), "r+b") as file:
        mmap.mmap(file.fileno(), 0)[:3] = b"new"
def c_library():
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(there("ctypes").encode(), b"w")
    if file:
        libc.fputs(b"new", ctypes.c_void_p(file)), libc.fclose(ctypes.c_void_p(file))
def numpy_save():
    import numpy
    numpy.save(there("numpy.npy"), numpy.zeros(3))
def torch_save():
    import torch
    torch.save({"a": 1}, there("torch.pt"))
def torch_from_file():
    import torch
    torch.from_file(there("from_file"), shared=True, size=3, dtype=torch.uint8).fill_(7)
def cv2_write():
    import cv2, numpy
    cv2.imwrite(there("cv2.png"), numpy.zeros((4, 4, 3), "uint8"))
def pillow():
    from PIL import Image
    Image.new("RGB", (4, 4)).save(there("pil.png"))
def polars():
    import polars
    polars.DataFrame({"a": [1]}).write_csv(there("polars.csv"))
def another(name, mode="w"):
    code = "open(%r, %r).write('new')" % (there(name), mode)
    subprocess.run([sys.executable, "-I", "-c", code], stderr=subprocess.DEVNULL, check=False)
ways = {
    "open": lambda: open(there("open"), "w").write("new"),
    "append": lambda: open(there("append"), "a").write("new"),
    "pathlib": lambda: pathlib.Path(there("pathlib")).write_text("new"),
    "os.open": lambda: os.write(os.open(there("os.open"), os.O_WRONLY), b"new"),
    "shutil": lambda: shutil.copyfile(__file__, there("shutil")),
    "numpy": numpy_save, "torch.save": torch_save, "torch.from_file": torch_from_file, "sqlite3": database,
    "cv2": cv2_write, "pil": pillow, "polars": polars, "mmap": mapped, "ctypes": c_library,
    "shell": lambda: sh("echo new > " + there("shell")), "rm": lambda: sh("rm -f " + there("rm")),
    "mv": lambda: sh("mv -f " + there("mv") + " " + there("mv2")),
    "os.system": lambda: os.system("echo new > " + there("system") + " 2>/dev/null"),
    "python -I": lambda: another("python"), "python -I, a new file": lambda: another("brand new"),
    "git": lambda: sh("cd " + there("repo") + " && git -c user.name=x -c user.email=x commit -q --allow-empty -m new"),
    "rename": lambda: os.rename(there("rename"), there("renamed")), "unlink": lambda: os.unlink(there("unlink")),
    "truncate": lambda: os.truncate(there("truncate"), 0), "symlink": lambda: os.symlink("x", there("symlink")),
    "hard link": lambda: os.link("made", there("link")), "mkdir": lambda: os.mkdir(there("folder")),
    "through a link": lambda: (os.symlink(there("linked"), "link"), open("link", "w").write("new")),
}
failed = {}
for name, way in ways.items():
    if sys.argv[2] != "all" and name.split(".")[0] in ("numpy", "torch", "cv2", "polars", "pil"):
        continue
    try:
        way()
    except Exception as error:
        failed[name] = type(error).__name__
# What a program needs in order to work.
pathlib.Path("made/here").write_text("new")
os.rename("made/here", "moved")
open(os.devnull, "w").write("x")
import multiprocessing
multiprocessing.Lock()
print(json.dumps({"ways": len(ways), "failed": failed}))
"""


@pytest.fixture
def outside(tmp_path):
    """Files of the user's, one for each way of writing, and a repository."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in (
        *("open", "append", "pathlib", "os.open", "shutil", "numpy.npy", "torch.pt", "from_file", "cv2.png", "pil.png"),
        *(
            "polars.csv",
            "mmap",
            "ctypes",
            "shell",
            "rm",
            "mv",
            "system",
            "python",
            "rename",
            "unlink",
            "truncate",
            "linked",
        ),
    ):
        (folder / name).write_text("old content")
    import sqlite3

    connection = sqlite3.connect(folder / "sqlite3.db")
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q", folder / "repo"], check=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "ways.py").write_text(WAYS)
    return folder


def contents(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else path.is_symlink()
        for path in sorted(folder.rglob("*"))
    }


def run_ways(outside: Path, confined: bool) -> dict:
    scratch = outside.parent / "scratch"
    words = [sys.executable, str(outside.parent / "ways.py"), str(outside), "all" if confined else "without libraries"]
    command = build_confined_command(words, [str(scratch), *environment.SYSTEM], scratch) if confined else words
    variables = {**os.environ, "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=scratch, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_landlock
def test_no_way_of_writing_reaches_the_users_files(outside):
    """Python, C libraries, other programs, links: 28 ways, none of which needs Python's leave; and in its scratch all works."""
    pytest.importorskip("torch")
    before = contents(outside)
    said = run_ways(outside, confined=True)
    assert said["ways"] == 28
    assert contents(outside) == before


def test_the_same_ways_reach_them_without(outside):
    """So that the test above shows something. Those of libraries are left out: they take seconds to import."""
    before = contents(outside)
    run_ways(outside, confined=False)
    after = contents(outside)
    assert len([name for name in before if before[name] != after.get(name)]) > 15


# --- the dry run ------------------------------------------------------------------------------------------------------


def context(folder: Path, text: str, **more) -> CheckContext:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return CheckContext(
        cwd=folder, machine=this_machine(), environment=variables, command=(sys.executable, "train.py"), **more
    )


def judged(ctx: CheckContext, come) -> object:
    (result,) = run_all([by_id()["learning-first-steps"]], replace(ctx, make_dry_run=lambda _: come))
    return result


@needs_landlock
def test_a_training_that_must_write_elsewhere_is_not_called_broken(tmp_path):
    """It is said what it was kept from, and how to check it all the same."""
    place = tmp_path / "results"
    ctx = context(tmp_path / "work", f"import os\nos.makedirs({str(place)!r})\n")
    come = run_in_scratch(ctx, {}, 30.0)
    result = judged(ctx, come)
    assert (result.status, come.unconfined) == ("not checked", "")
    assert str(place) in result.message
    assert "--no-confine" in result.message
    assert not place.exists()


@needs_landlock
def test_a_refusal_that_only_a_library_came_upon_is_recognised(tmp_path):
    """An uncaught error with that number, from below Python; an error about anything else stays a fault."""
    kept = tmp_path / "kept"
    kept.write_text("x")
    text = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"if libc.open({str(kept)!r}.encode(), os.O_WRONLY) < 0:\n"
        "    raise RuntimeError('no') from OSError(ctypes.get_errno(), 'no', 'kept')\n"
    )
    ctx = context(tmp_path / "work", text)
    come = run_in_scratch(ctx, {}, 30.0)
    assert (come.blocked_path, judged(ctx, come).status) == ("kept", "not checked")
    broken = context(tmp_path / "work", "raise KeyError('label')\n")
    come = run_in_scratch(broken, {}, 30.0)
    result = judged(broken, come)
    assert result.status == "fatal"
    assert any("--no-confine" in found.message for found in result.findings), "it may have been that all the same"


def test_what_is_not_prevented_is_told(tmp_path, monkeypatch):
    """Where the system has no way: why, and which programs and databases it used."""
    monkeypatch.setattr(landlock, "why_unavailable", lambda: "there is no Landlock on this system")
    text = "import os, sqlite3\nos.system('true')\nsqlite3.connect('a.db').close()\n"
    ctx = context(tmp_path / "work", text)
    come = run_in_scratch(ctx, {}, 30.0)
    assert come.unconfined == "there is no Landlock on this system"
    assert come.external_writers == ["true", "a.db"]
    steps = tuple({"event": "dry-run-step", "phase": "first", "step": n, "loss": 1.0 / n} for n in (1, 2, 3))
    result = judged(ctx, replace(come, lines=(*come.lines, *steps)))
    assert any(
        found.message.startswith("On this system, writes to your files by native libraries")
        for found in result.findings
    )
    assert any("true, a.db" in found.message for found in result.findings)


@needs_landlock
def test_a_command_that_is_not_there_says_so(tmp_path):
    """Though another program starts it."""
    ctx = replace(context(tmp_path / "work", ""), command=("no-such-program",))
    assert "No such file" in run_in_scratch(ctx, {}, 10.0).start_error


def test_a_program_that_cannot_confine_itself_is_no_failed_training(tmp_path, monkeypatch):
    """One that ended before it came to the command."""
    monkeypatch.setattr(landlock, "why_unavailable", lambda: None)
    monkeypatch.setattr(run, "build_confined_command", lambda *_: [sys.executable, "-c", "raise SystemExit(9)"])
    assert "could not be confined" in run_in_scratch(context(tmp_path / "work", ""), {}, 10.0).start_error


# --- the parts --------------------------------------------------------------------------------------------------------


def test_rights_by_version_and_by_place():
    """Nothing is asked for that a kernel does not know, and a file takes only what a file can."""
    assert landlock.write_rights(2) & landlock.TRUNCATE == 0
    assert landlock.write_rights(3) == landlock.write_rights(2) | landlock.TRUNCATE
    assert landlock.write_rights(1) & landlock.REFER == 0
    rights = landlock.write_rights(3)
    assert landlock.rights_beneath("/scratch", 0o040700, rights) == rights
    assert landlock.rights_beneath("/dev/null", 0o020666, rights) == landlock.OF_FILES
    assert landlock.rights_beneath("/dev", 0o040755, rights) == landlock.OF_FILES
    assert struct.unpack("=Qi", landlock.pack_rule(rights, 7)) == (rights, 7)
    assert len(landlock.pack_rule(rights, 7)) == 12, "packed, as the kernel has it"


@pytest.mark.parametrize(
    ("known", "message"), [(7, None), (2, None), (1, "too old"), (0, "no Landlock"), (-1, "no Landlock")]
)
def test_versions_that_are_of_use(monkeypatch, known, message):
    """The first cannot move a file to another folder at all, which breaks programs."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(landlock, "version", lambda: known)
    why = landlock.why_unavailable()
    assert why is None if message is None else message in why


def test_other_systems_have_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "no Landlock" in landlock.why_unavailable()


def test_tools_write_to_their_own_folders(tmp_path, monkeypatch):
    """Those that are there; for the others a variable names one in the scratch. Never one that holds the work or the home."""
    home, work = tmp_path / "home", tmp_path / "home/work"
    (home / ".cache").mkdir(parents=True)
    (tmp_path / "hub").mkdir()
    monkeypatch.setenv("HOME", str(home))
    ctx = context(work, "")
    ctx = replace(ctx, environment={"HF_HOME": str(tmp_path / "hub"), "TORCH_HOME": str(home), "MPLCONFIGDIR": "rel"})
    found = environment.find_writable(ctx, tmp_path / "scratch")
    assert found.caches == (str(home / ".cache"), str(tmp_path / "hub"))
    assert set(found.variables) == {"CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "YOLO_CONFIG_DIR"}
    assert ("/tmp" in found.folders) == (not work.is_relative_to("/tmp"))


def test_new_files_elsewhere_are_refused_where_it_is_confined(tmp_path):
    """Python asks first: the answer is the one that the system would give, and it is told of."""
    scratch, cache = tmp_path / "scratch", tmp_path / "cache"
    scratch.mkdir()
    cache.mkdir()
    (cache / "old").write_text("")
    keeper = WriteGuard(str(scratch / "log"), [str(scratch)], [str(cache)], [str(scratch), str(cache)])
    assert keeper.may_write(scratch / "new", "open")
    assert keeper.may_write(cache / "old", "open")
    assert not keeper.may_write(tmp_path / "new", "open")
    keeper.report_error(ValueError("x"))
    keeper.report_error(PermissionError(13, "no", "/data"))
    lines = [json.loads(line) for line in (scratch / "log").read_text().splitlines()]
    assert [(line["what"], line["path"]) for line in lines] == [("refused", str(tmp_path / "new")), ("denied", "/data")]
