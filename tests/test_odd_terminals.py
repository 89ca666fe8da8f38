"""Streams that are closed, a terminal that knows no more than ASCII, names that are no text, Python without docstrings: nothing ends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import HOLDFAST, environment, holdfast, training

import holdfast as package
from holdfast.storage.folder import RunFolder

PYTHON = sys.executable


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams(closed, tmp_path):
    """The training runs, its own files are not printed into, and the status is right."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nopen('ran', 'w').write('yes')\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
    )
    line = f'"{HOLDFAST}" run --max-attempts 1 --dir run -- "{PYTHON}" train.py {closed}'
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 4
    assert (tmp_path / "ran").read_text() == "yes"
    assert json.loads((tmp_path / "run/summary.json").read_text())["attempts"][0]["exit"]["code"] == 3
    assert (tmp_path / "run/attempts/1/stdout.log").read_text() == "out\n"
    line = f'"{HOLDFAST}" status run {closed}'
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(), check=False).returncode == 0


def test_ascii_only(tmp_path):
    """`±`, boxes and dashes are replaced where they cannot be shown; nothing ends on them."""
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = holdfast(
        tmp_path, "run", "--dir", "run", "--", PYTHON, "-c", "raise SystemExit('caf\\u00e9')", env=ascii_only
    )
    assert ran.code == 4, ran.stderr
    (tmp_path / "ü.log").write_text("epoch 1 loss 0.5 ± 0.1\nValueError: …\n")
    for words in (["status", "run"], ["report", "run"], ["diagnose", "ü.log"]):
        done = holdfast(tmp_path, *words, env=ascii_only)
        assert done.code in (0, 3), done.stderr
        assert (done.stdout + done.stderr).isascii()
        assert "Traceback" not in done.stderr


def test_folder_whose_name_is_no_text(tmp_path):
    """The run is recorded, killed, gone on with from its checkpoint, taken over and reported, all in the real folder."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff"))
    folder.mkdir()
    part = """
    if "--resume" in sys.argv:
        state = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
        start = state["step"]
    def after(step):
        if step % 5 == 0:
            torch.save({"step": step}, os.path.join(os.getcwd(), "state.pt"))
        if step == 12 and FIRST:
            die()
    """
    training(folder, part)
    argument = os.fsdecode(b"arg\xfe")
    words = ["run", "--backoff", "0", "--max-attempts", "1", "--checkpoint", "*.pt", "--resume-with", "--resume {checkpoint}", "--", PYTHON,
             "train.py", argument]  # fmt: skip
    ran = holdfast(folder, *words)
    assert ran.code == 4, ran.stderr
    again = holdfast(folder, "resume")
    assert again.code == 0, again.stderr
    run = RunFolder(next((folder / ".holdfast/runs").iterdir()))
    told = json.loads(run.summary.read_text("utf-8"))
    assert [(attempt["last_step"], (attempt["resumed"] or {}).get("step")) for attempt in told["attempts"]] == [
        (12, None),
        (30, 10),
    ]
    assert told["attempts"][0]["saved"]
    for words in (["status"], ["report", "--json"]):
        done = subprocess.run(
            [str(HOLDFAST), *map(str, words)], cwd=folder, env=environment(), capture_output=True, check=False
        )
        assert done.returncode in (0, 3), done.stderr
        done.stdout.decode("utf-8")


@pytest.mark.parametrize("words", [["rules", "--json"], ["run", "--help"]])
def test_pages_without_docstrings(words, tmp_path):
    """PYTHONOPTIMIZE=2 drops docstrings: rules and helps are read from the source."""
    plain = holdfast(tmp_path, *words)
    assert len(plain.stdout) > 300
    assert holdfast(tmp_path, *words, env={"PYTHONOPTIMIZE": "2"}).stdout == plain.stdout


def test_pages_of_checks_without_docstrings(tmp_path):
    """Each check has its page too."""
    program = "from holdfast.preflight.checks import all_checks; print(min(len(c.page) for c in all_checks()))"
    source = str(Path(package.__file__).parents[1])
    done = subprocess.run(
        [PYTHON, "-OO", "-c", program], env=environment(PYTHONPATH=source), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["rules", "status run", "status run --json", "--help"])
def test_a_full_disk_behind_standard_output(tmp_path, words):
    """A sentence on stderr and exit status 1; nothing at all where stderr is full too. The run itself has its verdict in its folder."""
    assert holdfast(tmp_path, "run", "--dir", "run", "--", "true").code == 0
    for both in ("", "2>&1"):
        line = f'"{HOLDFAST}" {words} > /dev/full {both}'
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr == ("" if both else "holdfast: the output could not be written: No space left on device.\n")


def test_a_reader_that_has_read_enough(tmp_path):
    """`holdfast rules | head -1`: no word about it."""
    line = f'"{HOLDFAST}" rules | head -n 1 > /dev/null; "{HOLDFAST}" rules | true'
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
