"""What an attempt saved is kept out of harm's way, and a torn file is known without opening it."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.storage import checkpoint_backup
from holdfast.storage.checkpoint_backup import back_up
from holdfast.storage.integrity import is_truncated


def archive(members: int = 3, size: int = 1000) -> bytes:
    """A file as torch.save writes it: a stored zip, its directory at the end."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        for number in range(members):
            file.writestr(f"archive/data/{number}", os.urandom(size))
    return raw.getvalue()


def safetensors(data: bytes = b"x" * 64, claimed: int = 64) -> bytes:
    head = json.dumps(
        {"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [16], "data_offsets": [0, claimed]}}
    ).encode()
    return struct.pack("<Q", len(head)) + head + data


def saved(folder: Path, name: str, data: bytes | None = None, at: float | None = None) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(archive() if data is None else data)
    if at is not None:
        os.utime(file, (at, at))
    return file


def kept_at(tmp_path: Path, files, **how):
    return back_up(files, tmp_path / "vault", reserve_bytes=how.pop("reserve_bytes", 0), base=tmp_path, **how)


def test_a_copy_survives_what_torch_save_does_to_the_original(tmp_path):
    """The original is truncated and rewritten in place: the copy keeps its bytes, so it is no hard link."""
    file = saved(tmp_path, "runs/weights/last.pt")
    before = file.read_bytes()
    files, left_out = kept_at(tmp_path, [(file, 40)])
    file.write_bytes(b"")
    copy = Path(files[0].kept)
    assert copy.read_bytes() == before
    assert copy == tmp_path / "vault/runs/weights/last.pt"
    assert (files[0].path, files[0].bytes, files[0].step, files[0].torn) == (str(file), len(before), 40, False)
    assert left_out == []


def test_a_real_copy_and_a_clone_look_the_same(tmp_path, monkeypatch):
    """Where the file system can clone it is asked to; where not, bytes are copied."""
    file = saved(tmp_path, "last.pt")

    def fake_clone(source, target):
        shutil.copyfile(source, target)
        return True

    for can in (fake_clone, lambda *_: False):
        monkeypatch.setattr(checkpoint_backup, "clone", can)
        files, _ = kept_at(tmp_path, [(file, 1)])
        assert Path(files[0].kept).read_bytes() == file.read_bytes()


def test_a_clone_needs_no_room(tmp_path, monkeypatch):
    """The reserve binds copies only: a clone shares its blocks."""
    file = saved(tmp_path, "last.pt")
    monkeypatch.setattr(checkpoint_backup, "clone", lambda a, b: bool(shutil.copyfile(a, b)))
    files, left_out = kept_at(tmp_path, [(file, 1)], reserve_bytes=1 << 60)
    assert (len(files), left_out) == (1, [])


def test_same_names_from_different_folders_do_not_meet(tmp_path):
    """Below the project folders stay as they were; a file from outside gets its whole path, readably."""
    base = tmp_path / "project"
    one, two = saved(base, "fold1/last.pt", b"1" * 9), saved(base, "fold2/last.pt", b"2" * 9)
    out = saved(tmp_path, "elsewhere/last.pt", b"3" * 9)
    files, _ = back_up([(one, 1), (two, 1), (out, 1)], tmp_path / "vault", 0, base)
    kept = {Path(f.kept).read_bytes()[:1]: Path(f.kept).relative_to(tmp_path / "vault") for f in files}
    assert kept[b"1"] == Path("fold1/last.pt")
    assert kept[b"2"] == Path("fold2/last.pt")
    assert kept[b"3"] == Path("outside-the-project", *out.resolve().parts[1:])


def test_the_newest_comes_first_and_what_does_not_fit_is_said(tmp_path, monkeypatch):
    """With room for one of two, the newest is kept and the other named with the sizes; a smaller one may still fit."""
    old = saved(tmp_path, "old.pt", b"x" * 800, at=1000.0)
    new = saved(tmp_path, "new.pt", b"x" * 800, at=2000.0)
    small = saved(tmp_path, "small.pt", b"x" * 50, at=500.0)
    room = [1000]
    monkeypatch.setattr(checkpoint_backup, "clone", lambda *_: False)

    def free(_):
        return SimpleNamespace(free=room[0])

    def copy(file, target, size):
        room[0] -= size
        Path(target).write_bytes(file.read(size))

    monkeypatch.setattr(checkpoint_backup.shutil, "disk_usage", free)
    monkeypatch.setattr(checkpoint_backup, "_copy_bytes", copy)
    files, left_out = kept_at(tmp_path, [(old, 1), (new, 2), (small, 0)], reserve_bytes=100)
    assert [Path(f.path).name for f in files] == ["new.pt", "small.pt"]
    assert len(left_out) == 1
    assert left_out[0].startswith(f"{old}: it needs 0.00 MiB, but only ")


def test_what_is_no_file_is_left_out_with_its_reason(tmp_path):
    """A file that the training itself has rotated away is nothing that could be lost, and is not counted as such."""
    os.mkfifo(tmp_path / "pipe")
    files, left_out = kept_at(tmp_path, [("gone.pt", 3), ("pipe", 3)])
    assert files == []
    assert left_out == ["pipe: neither a file nor a folder"]


def test_an_unreadable_disk_leaves_no_half_file(tmp_path, monkeypatch):
    """A copy that fails in the middle is removed, and the file before it stays."""
    file = saved(tmp_path, "last.pt", b"first")
    kept_at(tmp_path, [(file, 1)])

    def fails(_, target, size):
        Path(target).write_bytes(b"ha")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_backup, "clone", lambda *_: False)
    monkeypatch.setattr(checkpoint_backup, "_copy_bytes", fails)
    file.write_bytes(b"second")
    files, left_out = kept_at(tmp_path, [(file, 2)])
    assert (files, left_out) == ([], [f"{file}: No space left on device"])
    assert [p.name for p in (tmp_path / "vault").iterdir()] == ["last.pt"]
    assert (tmp_path / "vault/last.pt").read_bytes() == b"first"


def test_a_folder_checkpoint_is_kept_whole(tmp_path):
    """With its subfolders and links; kept again it replaces the one before; a link into the folder leads into the copy."""
    saved(tmp_path, "checkpoint-500/model.safetensors", safetensors())
    saved(tmp_path, "checkpoint-500/state/optim.pt")
    (tmp_path / "checkpoint-500/newest").symlink_to(tmp_path / "checkpoint-500/state/optim.pt")
    (tmp_path / "checkpoint-500/loop").symlink_to(tmp_path / "checkpoint-500")
    for _ in range(2):
        files, left_out = kept_at(tmp_path, [("checkpoint-500", 500)])
        assert left_out == []
    copy = Path(files[0].kept)
    assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file() and not p.is_symlink()) == [
        "model.safetensors",
        "state/optim.pt",
    ]
    assert (copy / "newest").resolve() == (copy / "state/optim.pt").resolve()
    assert (copy / "loop").resolve() == copy.resolve()
    (copy / "newest").unlink()
    assert files[0].bytes == sum(p.stat().st_size for p in copy.rglob("*") if p.is_file())
    assert not files[0].torn
    (tmp_path / "checkpoint-500/state/optim.pt").write_bytes(archive()[:-30])
    files, _ = kept_at(tmp_path, [("checkpoint-500", 501)])
    assert files[0].torn


def test_links_out_of_a_saved_folder_stay_links(tmp_path):
    """What they lead to was not saved there, and may be a dataset: it is not copied, and that is said."""
    saved(tmp_path, "checkpoint-500/model.safetensors", safetensors())
    saved(tmp_path, "data/train/images.bin", b"x" * 1_000_000)
    (tmp_path / "checkpoint-500/data").symlink_to("../data")
    (tmp_path / "checkpoint-500/one.bin").symlink_to(tmp_path / "data/train/images.bin")
    (tmp_path / "checkpoint-500/self").symlink_to("self")
    os.mkfifo(tmp_path / "checkpoint-500/pipe")
    files, left_out = kept_at(tmp_path, [("checkpoint-500", 500)])
    copy = Path(files[0].kept)
    assert files[0].bytes == (tmp_path / "checkpoint-500/model.safetensors").stat().st_size
    assert (copy / "data").is_symlink()
    assert (copy / "data").resolve() == tmp_path / "data"
    assert (copy / "one.bin").resolve() == tmp_path / "data/train/images.bin"
    assert not (copy / "pipe").exists()
    assert left_out == [
        "checkpoint-500: symlinks that point outside are kept as symlinks, without their targets: data, one.bin, self",
        "checkpoint-500: neither files nor folders: pipe",
    ]


def test_what_is_copied_is_bounded(tmp_path, monkeypatch):
    """In bytes at once, in files of one folder, and to what a file held when its copy began."""
    monkeypatch.setattr(checkpoint_backup, "clone", lambda *_: False)
    monkeypatch.setattr(checkpoint_backup, "MAX_COPIED", 1000)
    monkeypatch.setattr(checkpoint_backup, "MAX_FILES", 3)
    new, old = saved(tmp_path, "new.pt", b"x" * 700, at=2000.0), saved(tmp_path, "old.pt", b"x" * 700, at=1000.0)
    for number in range(5):
        saved(tmp_path, f"many/{number}", b"", at=100.0)
    files, left_out = kept_at(tmp_path, [(new, 1), (old, 1), ("many", 1)])
    assert [file.path for file in files] == [str(new)]
    assert [said.partition(": ")[2] for said in left_out] == [
        "it needs 0.00 MiB, but only 0.00 MiB is left of the copy limit",
        "it contains more than 3 files",
    ]
    endless = io.BytesIO(b"x" * 5000)
    checkpoint_backup._copy_bytes(endless, tmp_path / "copy", 10)
    assert (tmp_path / "copy").stat().st_size == 10


def test_a_link_and_its_file_are_one(tmp_path):
    """Links are followed, and a file named twice is kept once, at the later step."""
    file = saved(tmp_path, "step-9.pt")
    (tmp_path / "last.pt").symlink_to(file)
    files, _ = kept_at(tmp_path, [(file, 9), (tmp_path / "last.pt", 10)])
    assert [(f.step, Path(f.kept).name) for f in files] == [(10, "step-9.pt")]


def test_a_torn_checkpoint_is_kept_and_marked(tmp_path):
    """It may hold something yet; nobody may load it unasked."""
    files, _ = kept_at(tmp_path, [(saved(tmp_path, "last.pt", archive()[:2000]), 7)])
    assert files[0].torn


def test_what_lies_in_the_vault_already_is_not_kept_again(tmp_path):
    """A glob may match the vault itself."""
    inside = saved(tmp_path, "vault/attempt/last.pt")
    assert kept_at(tmp_path, [(inside, 1)]) == ([], [])


@pytest.mark.parametrize("cut", [1, 3, 10, 500, 1500, 3100, -30, -10, -1])
def test_an_archive_cut_anywhere_is_torn(tmp_path, cut):
    """torch.save writes the directory last, so every cut takes a part of it."""
    assert is_truncated(saved(tmp_path, "a.pt", archive()[:cut]))
    assert not is_truncated(saved(tmp_path, "b.pt", archive()))


def test_an_archive_that_lost_a_part_to_the_disk(tmp_path):
    """Of the right length, with its directory, but zeros where a member should begin."""
    data = bytearray(archive())
    data[0:4] = b"PK\x03\x04"
    second = data.index(b"PK\x03\x04", 4)
    data[second : second + 500] = bytes(500)
    assert is_truncated(saved(tmp_path, "a.pt", bytes(data)))
    assert is_truncated(saved(tmp_path, "zeros.pt", bytes(5000)))


def test_a_real_torch_save(tmp_path):
    """Whole as torch writes it, in the new format and the old; torn when the new one is cut."""
    torch = pytest.importorskip("torch")
    state = {"w": torch.randn(100, 100), "step": 3}
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert not is_truncated(tmp_path / "new.pt")
    assert not is_truncated(tmp_path / "old.pt")
    data = (tmp_path / "new.pt").read_bytes()
    assert is_truncated(saved(tmp_path, "cut.pt", data[: len(data) // 2]))


def test_safetensors_are_checked_by_their_header(tmp_path):
    """Shorter than the header says is torn; so is a header that is cut or is no JSON."""
    assert not is_truncated(saved(tmp_path, "a.safetensors", safetensors()))
    assert is_truncated(saved(tmp_path, "b.safetensors", safetensors(b"x" * 63)))
    assert is_truncated(saved(tmp_path, "c.safetensors", safetensors()[:40]))
    assert is_truncated(saved(tmp_path, "d.safetensors", b"\x01"))
    assert is_truncated(saved(tmp_path, "e.safetensors", struct.pack("<Q", 4) + b"nope" + b"x" * 50))


def test_empty_is_torn_and_an_unknown_format_is_not(tmp_path):
    """An old pickle, or anything else without a check, passes; nothing in it is ever run."""

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    assert is_truncated(saved(tmp_path, "empty.pt", b""))
    assert not is_truncated(saved(tmp_path, "old.pkl", pickle.dumps(Trap())))
    assert not is_truncated(saved(tmp_path, "log.csv", b"epoch,loss\n"))
    with pytest.raises(FileNotFoundError):
        is_truncated(tmp_path / "gone.pt")


def test_a_large_archive_is_not_read_whole(tmp_path):
    """One of 64 GB, nearly all of it a hole, is judged at once: whole with its directory, torn without."""
    file, size = tmp_path / "big.pt", 64 << 30
    try:
        with zipfile.ZipFile(file, "w") as out:
            out.writestr("archive/data/0", b"x")
            out.filelist[0].file_size = out.filelist[0].compress_size = size
            out.start_dir += size
    except OSError as error:
        pytest.skip(f"this file system has no files of that size: {error}")
    began = time.monotonic()
    assert not is_truncated(file)
    os.truncate(file, size)
    assert is_truncated(file)
    assert time.monotonic() - began < 1.0


def test_a_folder_around_the_vault_is_left_out(tmp_path):
    """To copy it would copy the copies."""
    saved(tmp_path, "project/last.pt")
    files, left_out = back_up([(tmp_path / "project", 1)], tmp_path / "project/.holdfast/saved", 0, tmp_path)
    assert files == []
    assert left_out == [f"{tmp_path / 'project'}: it contains the run folder"]


def test_copies_are_flushed_beside_the_next_attempt(tmp_path, monkeypatch):
    """Not one file of a copy is forgotten, nor the folders that name them; no thread is left for the next fork."""
    saved(tmp_path, "last.pt")
    saved(tmp_path, "epoch-3/model/shard-0.pt")
    files, _ = kept_at(tmp_path, [(tmp_path / "last.pt", 1), (tmp_path / "epoch-3", 2)])
    threads_before = threading.active_count()
    flushed: list[tuple[Path, bool]] = []

    def note(place):
        flushed.append((place, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(checkpoint_backup, "_flush", note)
    flushing = checkpoint_backup.BackgroundFlush()
    flushing.add(files)
    assert not flushed
    flushing.begin()
    assert flushing.end() == []
    kept = tmp_path / "vault"
    names = ["", "epoch-3", "epoch-3/model", "epoch-3/model/shard-0.pt", "last.pt"]
    assert {place for place, _ in flushed} == {kept / name for name in names}
    assert not any(on_main for _, on_main in flushed)
    assert threading.active_count() == threads_before


def test_copies_are_flushed_at_the_end_where_nothing_follows(tmp_path):
    """No attempt came after them, or no thread could be started; what fails is said, and the others are flushed."""
    files, _ = kept_at(tmp_path, [(saved(tmp_path, name), 1) for name in ("a.pt", "b.pt")])
    gone = next(Path(file.kept) for file in files if file.path.endswith("a.pt"))
    gone.unlink()
    flushing = checkpoint_backup.BackgroundFlush()
    flushing.add(files)
    assert [trouble.split(":")[0] for trouble in flushing.end()] == [str(gone)]
    assert flushing.end() == []
