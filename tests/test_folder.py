"""Run folders: their names, how they are found, and that no two supervisors share one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.schema.errors import FolderNotWritable, RunExists, RunIsLive, UnknownRun, UsageError
from holdfast.storage import folder
from holdfast.storage.lock import RunLock, is_live


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--epochs", "3"], "train"),
        (["python3", "-u", "src/my train.py"], "my-train"),
        (["python", "-m", "pkg.fit"], "fit"),
        (["torchrun", "--nproc-per-node", "2", "ddp.py"], "ddp"),
        (["yolo", "detect", "train"], "yolo"),
        (["/usr/bin/bash", "-c", "x"], "bash"),
    ],
)
def test_run_is_named_after_its_script(command, name):
    assert folder.derive_run_name(command) == name


def test_numbers_go_up_and_are_taken_atomically(tmp_path):
    """Many starts at once get a folder each."""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: folder.create(["python", "t.py"], root=tmp_path).name, range(24)))
    assert sorted(runs) == sorted(f"t-{n}" for n in range(1, 25))


def test_run_folder_is_private_and_out_of_git(tmp_path):
    run = folder.create(["python", "t.py"], root=tmp_path)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert (run.path / ".gitignore").read_text() == "*\n"


def test_dir_is_the_run_folder_itself_and_never_one_in_use(tmp_path):
    run = folder.create(["python"], root=tmp_path, folder=tmp_path / "here")
    assert run.path == (tmp_path / "here").resolve()
    run.plan.write_text("")
    with pytest.raises(RunExists, match="already contains a run"):
        folder.create(["python"], root=tmp_path, folder=tmp_path / "here")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(RunExists, match="not empty"):
        folder.create(["python"], root=tmp_path, folder=tmp_path / "mine")


def test_folder_that_cannot_be_made(tmp_path):
    """A file in the way (root may write anywhere, so permissions would not do): a sentence and a next step."""
    (tmp_path / ".holdfast").write_text("")
    with pytest.raises(FolderNotWritable, match="--dir"):
        folder.create(["python"], root=tmp_path)


def test_runs_are_found_by_name_number_path_or_as_the_newest(tmp_path):
    made = []
    for n, command in enumerate((["python", "a.py"], ["python", "b.py"], ["python", "a.py"])):
        run = folder.create(command, root=tmp_path)
        run.plan.write_text("")
        os.utime(run.plan, (n, n))
        made.append(run)
    assert folder.find("a", root=tmp_path) == made[2]
    assert folder.find("a-1", root=tmp_path) == made[0]
    assert folder.find(str(made[1].path), root=tmp_path) == made[1]
    assert folder.find(None, root=tmp_path) == made[2]
    with pytest.raises(UnknownRun, match="a-2"):
        folder.find("c", root=tmp_path)


def test_no_run_at_all(tmp_path):
    with pytest.raises(UnknownRun, match="start one"):
        folder.find(None, root=tmp_path)


def test_two_supervisors_never_share_a_run(tmp_path):
    """The lock is seen from another process, names its holder, and goes with the process that held it."""
    run = folder.create(["python"], root=tmp_path)
    holder = (
        "import sys\nfrom pathlib import Path\nfrom holdfast.storage.folder import RunFolder\n"
        "from holdfast.storage.lock import RunLock\n"
        f"with RunLock(RunFolder(Path({str(run.path)!r}))):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    assert is_live(run)
    with pytest.raises(RunIsLive, match=str(other.pid)), RunLock(run):
        pass
    other.kill()
    other.wait()
    assert not is_live(run)
    with RunLock(run):
        assert is_live(run)
    assert not is_live(run)
    other.stdin.close()
    other.stdout.close()


def test_atomic_write_leaves_the_old_text_or_the_new(tmp_path):
    path = tmp_path / "summary.json"
    folder.write_atomically(path, "one")
    folder.write_atomically(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(TypeError):
        folder.write_atomically(path, None)
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name",
    ["../../x", "/abs", "a/b", "..", ".", "", "-x", ".hidden", "a\x1b[31mb", "a\nb", "a\udcff", "ä", "x" * 65, "a\0"],
)
def test_names_that_no_run_gets(tmp_path, name):
    """Those that lead elsewhere, or that a terminal obeys: a sentence without them, and no folder anywhere."""
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    with pytest.raises(UsageError, match="is not a valid run name") as refused:
        folder.create(["python"], root=root, name=name)
    assert refused.value.exit_status == 2
    assert all(part.isprintable() for part in str(refused.value).splitlines())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]


def test_run_refuses_such_a_name_before_anything_is_looked_at(tmp_path):
    """Also with --dir, where no folder would get it, and before a plan is read."""
    words = ["run", "--name", "../../x", "--dir", "here", "no-such-plan.toml"]
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--name '../../x' is not a valid run name" in ran.stderr


@pytest.mark.parametrize(
    "script", ["x" * 250 + ".py", "a\x1b[31mb\n.py", "\udcff.py", "...py", "_x.py", "ä.py", "-.py"]
)
def test_names_made_of_scripts_are_fit_for_folders(tmp_path, script):
    """However long or strange the script's name is, and the same for stages."""
    assert folder.FOLDER_NAME.fullmatch(folder.derive_run_name(["python", script]))
    run = folder.create(["python", script], root=tmp_path)
    stage = folder.make_stage(run, 1, script)
    assert run.path.is_dir()
    assert stage.path.parent == run.stages
    assert stage.path.name == "1" or folder.FOLDER_NAME.fullmatch(stage.path.name.partition("-")[2])
