"""Checkpoints are read back without running what is in them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.verdict import _check_checkpoint_reloads
from holdfast.probe.holdfast_probe import verify_checkpoint
from holdfast.schema import events
from holdfast.storage.journal import Entry
from holdfast.supervisor.verify_checkpoints import SOURCE, Reader


def read_back(*paths):
    """As the supervisor does it: the file's text, under another interpreter."""
    asked = "".join(json.dumps(str(path)) + "\n" for path in paths)
    done = subprocess.run(
        [sys.executable, "-c", SOURCE.read_text()], input=asked, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Own(nn.Module):
    """A class of the user's, which the reader cannot import and must not need."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.weight = nn.Parameter(torch.ones(4))


def test_states_modules_and_old_formats_load(tmp_path):
    """A state dict, a checkpoint with an optimizer, a whole pickled module and torch's old format: all tensors are found."""
    model = Own()
    optimizer = torch.optim.AdamW(model.parameters())
    model.inner(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "both.pt")
    torch.save({"model": model, "best": 0.5}, tmp_path / "module.pt")
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    said = read_back(*(tmp_path / name for name in ("state.pt", "both.pt", "module.pt", "old.pt")))
    assert [(each["loads"], each["nonfinite"]) for each in said] == [(True, [])] * 4
    assert said[0]["tensors"] == said[2]["tensors"] == said[3]["tensors"] == len(model.state_dict())
    assert said[1]["tensors"] > said[0]["tensors"]


@pytest.mark.parametrize("whole_module", [False, True])
def test_values_that_are_not_finite_are_named(tmp_path, whole_module):
    model = Own()
    with torch.no_grad():
        model.inner[0].weight[1, 1] = float("nan")
    torch.save(model if whole_module else model.state_dict(), tmp_path / "nan.pt")
    (said,) = read_back(tmp_path / "nan.pt")
    assert said["nonfinite"] == ["inner.0.weight"]


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_of_the_file_runs(tmp_path, zipped):
    """A pickle that calls a function when it is loaded calls nothing here, and its tensors are still read."""
    made = tmp_path / "made by the pickle"
    thing = OrderedDict(weight=torch.ones(2), trap=Evil(made))
    torch.save(thing, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    (said,) = read_back(tmp_path / "evil.pt")
    assert (said["loads"], said["tensors"]) == (True, 1)
    assert not made.exists()


def test_what_is_no_checkpoint_says_why(tmp_path):
    """Cut off, empty, plain text and a bare pickle: each a sentence, none a crash, and the next path is still read."""
    torch.save({"weight": torch.ones(1000)}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:-300])
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("no checkpoint at all")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps({"x": 1}))
    *broken, whole = read_back(*(tmp_path / f"{name}.pt" for name in ("cut", "empty", "text", "bare", "whole")))
    assert all(not each["loads"] and each["why"] for each in broken)
    assert whole["loads"]


def test_a_small_file_that_describes_a_tensor_of_any_size_says_nothing(tmp_path):
    """It would take a terabyte to look at every value; memory is bounded, and nothing is claimed of it."""
    torch.save({"w": torch.zeros(1).expand(1 << 20, 1 << 20)}, tmp_path / "huge.pt")
    torch.save({"w": torch.zeros(3)}, tmp_path / "small.pt")
    (said,) = read_back(tmp_path / "huge.pt", tmp_path / "small.pt")
    assert said["path"].endswith("small.pt")


@pytest.mark.parametrize(
    ("seen", "ready"),
    [
        (["epoch 9 of 10"], False),
        (["epoch 10 of 10"], True),
        (["process-exiting"], True),
        (["epoch 10 of 10", "epoch 1 of 5"], False),  # the program trains once more
        (["epoch 10 of 10", "process-exiting", "ended"], True),
        (["epoch 10 of 10", "killed"], False),
    ],
)
def test_the_reader_gets_ready_while_a_training_comes_to_its_end(monkeypatch, seen, ready):
    started = []

    class Process:
        def __init__(self, *_, **__):
            started.append(self)

        def kill(self):
            started.remove(self)

        def communicate(self):
            return b"", b""

    monkeypatch.setattr(subprocess, "Popen", Process)
    attempt = SimpleNamespace(
        attached=SimpleNamespace(executable="python"), saves=SimpleNamespace(by_path={"last.pt": 1})
    )
    state = SimpleNamespace(attempts=[attempt], attempt=attempt)
    reader = Reader()
    for name in seen:
        reader(_event_called(name), state)
    assert bool(started) is ready


def _event_called(name):
    if name == "process-exiting":
        return events.ProcessExiting(at=1.0, step=1, reason="exit")
    if name in ("ended", "killed"):
        code = 0 if name == "ended" else None
        return events.AttemptEnded(at=2.0, attempt=1, code=code, first_step=1, last_step=1, seconds=1.0)
    _, number, _, planned = name.split()
    return events.Epoch(
        at=1.0, epoch=int(number), step=1, seconds=1.0, batches=1, planned=int(planned), source="ultralytics"
    )


# --- files that would run something -----------------------------------------------------------------------------------


SCRIPTED = """
import sys
import torch

class Written(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(2)

    def forward(self, x):
        return x

    @torch.jit.export
    def __getstate__(self):
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.weight = state[0]
        self.training = state[1]
        torch.save(state[0], PLACE)

torch.jit.save(torch.jit.script(Written()), sys.argv[1])
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """An archive of TorchScript that writes a file when it is loaded."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "write.py").write_text(SCRIPTED.replace("PLACE", repr(str(folder / "written"))))
    subprocess.run([sys.executable, "-W", "ignore", folder / "write.py", folder / "model.pt"], check=True)
    return folder


def test_an_archive_that_runs_or_unpacks_something_is_not_loaded(hostile, tmp_path):
    """A program in it would run, torch's oldest format would be unpacked to a disk: neither is loaded, nor said to be broken."""
    with tarfile.open(tmp_path / "old.tar", "w") as archive:
        archive.add(__file__, "pickle")
    with zipfile.ZipFile(tmp_path / "model.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", "{}")
    torch.save({"weight": torch.ones(2)}, tmp_path / "next.pt")
    script, tar, mar, following = read_back(
        hostile / "model.pt", *(tmp_path / name for name in ("old.tar", "model.mar", "next.pt"))
    )
    assert (script["loads"], script["why"]) == (None, "a TorchScript archive runs code when it loads")
    assert (tar["loads"], tar["why"]) == (None, "a tar archive is unpacked when it loads")
    assert not mar["loads"]
    assert following["loads"]
    assert not (hostile / "written").exists()


def test_torchs_own_way_to_torchscript_is_shut_too(hostile, monkeypatch):
    """An archive that our look at its list of files did not recognise still is not handed to torch.jit.load."""
    monkeypatch.setattr(verify_checkpoint, "_check_archive", lambda *_: None)
    monkeypatch.setattr(torch.jit, "load", torch.jit.load)
    monkeypatch.setattr(tarfile, "open", tarfile.open)
    with pytest.warns(UserWarning, match="TorchScript"), pytest.raises(verify_checkpoint.NotRead):
        verify_checkpoint.load_checkpoint(str(hostile / "model.pt"))
    assert not (hostile / "written").exists()


def pickled(path, *opcodes: bytes):
    """A file of torch's with a pickle of one's own."""
    torch.save({"weight": torch.ones(2)}, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, b"\x80\x04" + b"".join(opcodes) + b"." if name.endswith("data.pkl") else data)


BY_HAND = {
    "a function of the system": [b"cos\nmkdir\n", b"(S'MADE'\n", b"tR"],
    "a dotted name": [b"\x8c\x0ctorch._utils\x8c\x08os.mkdir\x93", b"(S'MADE'\n", b"tR"],
    "a dotted name that ends well": [b"\x8c\x05torch\x8c\x11os.mkdir.xStorage\x93", b"(S'MADE'\n", b"tR"],
    "a state for a function of torch's": [b"ctorch._utils\n_rebuild_tensor_v2\n", b"N}S'x'\nS'MADE'\ns\x86b"],
    "another function of torch's": [b"ctorch\nload\n", b"(S'MADE'\n", b"tR"],
}


def test_pickles_made_by_hand_run_nothing(tmp_path):
    """Of each nothing runs and nothing good is said; and the next file is still read."""
    made = tmp_path / "made"
    for number, opcodes in enumerate(BY_HAND.values()):
        pickled(tmp_path / f"{number}.pt", *(part.replace(b"MADE", str(made).encode()) for part in opcodes))
    torch.save({"weight": torch.ones(2)}, tmp_path / "next.pt")
    *said, following = read_back(*(tmp_path / f"{number}.pt" for number in range(len(BY_HAND))), tmp_path / "next.pt")
    assert not made.exists()
    assert not any(each["loads"] for each in said)
    assert following["loads"]


def test_reading_a_file_only_reads(tmp_path):
    """The second line of defence: while a file is read, nothing is written, started or connected to."""
    watch = verify_checkpoint.ReadOnlyHook()
    watch("subprocess.Popen", ())
    watch.reading = True
    watch("open", (str(tmp_path), "rb", os.O_RDONLY))
    watch("import", ("x",))
    for event in ("subprocess.Popen", "os.system", "os.mkdir", "socket.connect", "ctypes.dlopen"):
        with pytest.raises(verify_checkpoint.NotRead, match=event):
            watch(event, ())
    for mode, flags in (("w", 0), (None, os.O_WRONLY)):
        with pytest.raises(verify_checkpoint.NotRead, match="open"):
            watch("open", (str(tmp_path), mode, flags))


def test_what_is_not_read_back_is_told_and_held_against_nothing():
    """The proof does not apply, and the checkpoint stays usable."""
    state = RunState()
    for event in (
        events.AttemptStarted(at=0.0, attempt=1, pid=1, command=["x"]),
        events.Reloaded(at=1.0, path="m.pt", step=1, loads=None, why="a TorchScript archive runs code when it loads"),
    ):
        state.fold(Entry(event, 1))
    answer, detail = _check_checkpoint_reloads(state)
    assert answer == "does not apply"
    assert "m.pt was not reloaded: a TorchScript archive" in detail
