"""Snapshots on disk: what can be kept, and that whatever happens to the writer there is always a whole one to go on from."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.probe.holdfast_probe.snapshots import snapshot_file
from holdfast.probe.holdfast_probe.snapshots.capture import Capture, NotEnoughMemory
from holdfast.probe.holdfast_probe.snapshots.encoding import UnsupportedValue, flatten, unflatten
from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.snapshot_file import CorruptSnapshot
from holdfast.probe.holdfast_probe.snapshots.store import Store, part_name

STATE = {
    "weights": {"a": torch.arange(12.0).view(3, 4), "half": torch.ones(3, dtype=torch.bfloat16), 3: torch.tensor(7)},
    "last": torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "empty": torch.empty(0, 3),
    "complex": torch.tensor([1 + 2j]),
    "bits": torch.tensor([True, False]),
    "plain": [1, -(2**70), 0.1, float("nan"), float("-inf"), "text\u2028", None, True, (1, (2,)), b"\0\xff", 3 - 4j],
    "kinds": [{1, 2}, frozenset("a"), deque([1, 2], 5), OrderedDict(b=1, a=2), Counter("aab"), defaultdict(int, x=1)],
    "torch": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
    "numpy": [np.float64(0.1), np.arange(6, dtype=np.uint32).reshape(2, 3), np.int64(-3)],
    (1, "a key"): {},
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        return same and a.contiguous().view(-1).tolist() == b.contiguous().view(-1).tolist()
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or repr(a) == repr(b))


def header_of(capture, position=1, step=1):
    return capture.header({"position": position, "step": step})


def captured(state):
    capture = Capture(torch)
    capture.take(state)
    return capture


def written(store, position, state):
    capture = captured(state)
    return store.write(position, header_of(capture, position, position), capture.raw())


def test_a_state_comes_back_as_it_was(tmp_path):
    """Every type of numbers and every container, strides and orders too."""
    capture = captured(STATE)
    path = str(tmp_path / "one.snapshot")
    snapshot_file.write(Files(), path, header_of(capture), capture.raw())
    header, state, digest = snapshot_file.read(torch, path)
    assert equal(state, STATE)
    assert header["step"] == 1
    assert snapshot_file.compute_digest(path) == digest


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": [1, {"b": object()}]}, r"\['a'\]\[1\]\['b'\] is builtins.object"),
        ({"f": len}, r"\['f'\] is builtins.builtin_function"),
        ({"s": torch.eye(2).to_sparse()}, r"\['s'\] is a tensor that is not stored as plain strided data"),
        ({"m": torch.empty(2, device="meta")}, r"\['m'\] is a tensor"),
        ({"d": defaultdict(lambda: 1)}, r"\['d'\] is collections.defaultdict"),
        ({"o": np.array([object()])}, r"\['o'\] is a NumPy value"),
    ],
)
def test_what_has_no_meaning_elsewhere_is_refused_by_its_place(state, said):
    with pytest.raises(UnsupportedValue, match=said):
        captured(state)


def test_a_capture_is_not_moved_by_what_the_training_does_next():
    """It is copied when it is taken, and the memory is used again for the next one."""
    weight = torch.ones(1000)
    state = {"w": weight, "lr": [0.1]}
    capture = Capture(torch)
    capture.take(state)
    before = bytes(capture.raw())
    weight.add_(1)
    state["lr"][0] = 0.2
    assert bytes(capture.raw()) == before
    assert json.loads(capture.tree) == ["dict", [["w", ["tensor", 0]], ["lr", ["list", [0.1]]]]]
    capture.take(state)
    assert bytes(capture.raw())[:4000] == weight.numpy().tobytes()


def test_a_capture_leaves_nothing_for_pythons_collector():
    """Thousands of containers for each would soon set off a collection of the whole process."""
    state = {"weights": {str(n): torch.ones(2) for n in range(500)}, "rates": [0.1] * 100}
    capture = captured(state)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        capture.take(state)
        grown = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert grown < 50


def test_a_tensor_that_is_resized_in_place_is_seen():
    weight = torch.ones(4)
    capture = Capture(torch)
    capture.take({"w": weight})
    weight.resize_(6).fill_(2)
    capture.take({"w": weight})
    assert capture.layouts[0][1] == [6]


def test_a_tensor_that_is_given_other_numbers_in_place_is_seen():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    capture = Capture(torch)
    capture.take({"w": weight})
    weight.data = torch.full((4,), 1 / 3)
    capture.take({"w": weight})
    assert capture.layouts[0][0] == "torch.float32"
    assert bytes(capture.raw())[:16] == weight.detach().numpy().tobytes()


def test_with_gradients_and_without_take_turns():
    """Gradients are other tensors after each step, and gone in between: then nothing of them is written."""
    weight, moment = torch.ones(1000), torch.zeros(1000)
    capture = Capture(torch)

    def take(gradient):
        capture.take({"gradient": gradient, "weight": weight, "moment": moment})
        return [layout[3] for layout in capture.layouts]

    assert take(torch.full((1000,), 1.0)) == [0, 4032, 8064]
    assert take(None) == [0, 4032]
    assert capture.bytes == 2 * 4032
    places = capture._current.views
    kept = torch.full((1000,), 3.0)
    assert take(kept) == [0, 4032, 8064]
    assert bytes(capture.raw())[:4000] == kept.numpy().tobytes()
    assert bytes(capture.raw())[4032:8032] == weight.numpy().tobytes()
    take(None)
    assert capture._current.views is places


def test_a_block_that_grows_does_not_stand_beside_the_one_before():
    """The first snapshot may have far less in it. Room is asked for when the old block is gone."""
    blocks = []

    def room():
        return 9 << 20 if not blocks or blocks[0]() is None else 1 << 20

    capture = Capture(torch, room)
    weight = torch.zeros(1 << 18)
    capture.take({"weight": weight})
    blocks.append(weakref.ref(capture._block))
    capture.take({"weight": weight, "moments": torch.zeros(7 << 18)})
    assert capture.bytes == 8 << 20


def test_names_with_signs_in_them_come_back(tmp_path):
    """The text of a mapping of tensors is made from a pattern: more than once, and in another order of tensors."""
    capture = Capture(torch)
    first, second = torch.ones(2), torch.zeros(3)
    path = str(tmp_path / "one.snapshot")
    for state in ({"%d": first, "50%": second}, {"x": second, "y": {"%d": first, "50%": second}}):
        for _ in range(2):
            capture.take(state)
            snapshot_file.write(Files(), path, header_of(capture), capture.raw())
            assert equal(snapshot_file.read(torch, path)[1], state)


@pytest.mark.parametrize(
    "layout",
    [
        ["torch.float32", [3], None, 0],
        ["torch.float32", [1], None, -4],
        ["torch.float32", [1], None, 2],
        ["torch.float32", [1], None, 1 << 70],
        ["torch.float32", [2, 2], [1, 1 << 40], 0],
        ["torch.float32", [2], [-1], 4],
        ["torch.float32", [-1], None, 0],
        ["torch.float64", [2], [0], 8],
        ["torch.float32", "ab", None, 0],
        ["torch.float32", [1 << 33], [0], 0],
        ["torch.float32", [-1, 3], [1, 1], 0],
        ["torch.float32", [1.0], None, 0],
        ["torch.float32", [1 << 2000, 0.5], None, 0],
    ],
)
def test_a_tensor_outside_of_its_snapshot_is_refused(tmp_path, layout):
    path = str(tmp_path / "bad.snapshot")
    header = json.dumps({"position": 1, "step": 1, "tree": ["tensor", 0], "tensors": [layout]})
    snapshot_file.write(Files(), path, header, memoryview(b"12345678"))
    with pytest.raises(CorruptSnapshot):
        snapshot_file.read(torch, path)


def test_tensors_of_ever_new_sizes_do_not_fill_the_memory():
    capture = Capture(torch)
    for size in range(1, 200):
        grown = torch.full((16 * size,), float(size))
        capture.take({"list of what was seen": grown})
        assert capture.bytes == 64 * size
        assert bytes(capture.raw()) == grown.numpy().tobytes()


def test_a_copy_needs_room():
    with pytest.raises(NotEnoughMemory, match="needs 4 MiB, but only 1 MiB is free"):
        Capture(torch, free_memory=lambda: 1 << 20).take({"w": torch.zeros(1 << 20)})


@pytest.mark.parametrize("spoil", ["cut", "flip", "other", "end", "empty", "header"])
def test_a_torn_snapshot_is_passed_over(tmp_path, spoil):
    """Whatever is wrong with the newest, the one before is taken, and it is said why."""
    store = Store(str(tmp_path))
    written(store, 1, {"w": torch.ones(3)})
    path = written(store, 2, {"w": torch.ones(3) * 2})
    content = Path(path).read_bytes()
    corrupt = {
        "cut": content[: len(content) // 2],
        "flip": content[:200] + bytes([content[200] ^ 1]) + content[201:],
        "other": b"PK\x03\x04" + content[4:],
        "end": content[:-1],
        "empty": b"",
        "header": content[:20] + b"\xff" * 8 + content[28:],
    }[spoil]
    Path(path).write_bytes(corrupt)
    said = []
    snapshot = store.read_newest(torch, lambda *about: said.append(about))
    assert snapshot.position == 1
    assert [about[0] for about in said] == [path]
    assert said[0][1]


def test_reading_runs_no_code(tmp_path):
    """A header that names things other than numbers, strings, containers and tensors is refused."""
    for tree in (
        ["os.system", "id"],
        ["__import__", ["list", []]],
        {"a": 1},
        ["tensor", 99],
        ["dtype", "os"],
        ["numpy", ["O", [1], ""]],
        ["complex", [10**400, 0]],
        ["deque", [10**30, ["list", []]]],
        ["tensor", 10**30],
    ):
        path = str(tmp_path / "bad.snapshot")
        header = json.dumps({"position": 1, "step": 1, "tree": tree, "tensors": []})
        snapshot_file.write(Files(), path, header, memoryview(b""))
        with pytest.raises(CorruptSnapshot):
            snapshot_file.read(torch, path)


def test_a_file_larger_than_memory_is_passed_over(tmp_path):
    """It takes no room on the disk, and has the right beginning and end."""
    store = Store(str(tmp_path))
    written(store, 1, {"w": torch.ones(3)})
    with (tmp_path / part_name(2, 0, 1)).open("wb") as file:
        file.write(snapshot_file.MAGIC)
        file.seek(1 << 43)
        file.write(snapshot_file.END)
    said = []
    assert store.read_newest(torch, lambda _, why, foreign: said.append(why)).position == 1
    assert "memory" in said[0]
    assert "\n" not in said[0]


def test_what_is_whole_but_of_something_else_is_passed_over(tmp_path):
    store = Store(str(tmp_path))
    written(store, 1, {"parts": {"w": torch.ones(3)}})
    written(store, 2, {"parts": 5})
    written(store, 3, [1, 2])
    said = []
    assert store.read_newest(torch, lambda _, why, foreign: said.append(why), required_keys=("parts",)).position == 1
    assert said == ["it does not contain the expected state"] * 2


class Killed(BaseException):
    pass


class Dying(Files):
    """A file system under a machine that stops after so many operations. What was not synced is lost, or half there."""

    def __init__(self, operations, lost):
        self._left = operations
        self._lost = lost
        self._unsynced = {}
        self._renamed = []
        self.died = False

    def _operation(self):
        self._left -= 1
        if self._left < 0:
            self._die()

    def _die(self):
        self.died = True
        for path, to, before in reversed(self._renamed):  # names that were not synced may be the old ones
            if self._lost and Path(to).exists():
                Path(to).replace(path)
                if before is not None:
                    Path(to).write_bytes(before)
        for path, synced in self._unsynced.values():
            where = path if Path(path).exists() else None
            if where is not None and self._lost:
                os.truncate(where, synced)
        raise Killed

    def create(self, path):
        self._operation()
        descriptor = super().create(path)
        self._unsynced[descriptor] = [path, 0]
        return descriptor

    def write(self, descriptor, data):
        data = bytes(data)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._operation()
            super().write(descriptor, part)

    def sync(self, descriptor):
        self._operation()
        self._unsynced.pop(descriptor, None)

    def close(self, descriptor):
        super().close(descriptor)

    def rename(self, path, to):
        self._operation()
        before = Path(to).read_bytes() if Path(to).exists() else None
        super().rename(path, to)
        self._renamed.append((path, to, before))

    def sync_folder(self, folder):
        self._operation()
        self._renamed.clear()

    def remove(self, path):
        self._operation()
        super().remove(path)


@pytest.mark.parametrize("lost", [True, False], ids=["unsynced is lost", "all is there"])
@pytest.mark.parametrize("again", [False, True], ids=["fresh", "same position"])
def test_killed_between_any_two_writes_there_is_a_whole_one(tmp_path, lost, again):
    """For every moment at which the machine can stop, the newest snapshot is the one before or the new one, never neither."""
    for operations in range(100):
        folder = tmp_path / str(operations)
        for position in (1, 2, 3, 4):
            written(Store(str(folder)), position, {"n": position, "w": torch.full((50,), float(position))})
        files = Dying(operations, lost)
        with contextlib.suppress(Killed):
            written(Store(str(folder), files=files), 4 if again else 5, {"n": 5, "w": torch.full((50,), 5.0)})
        snapshot = Store(str(folder)).read_newest(torch)
        assert snapshot.state["n"] in (4, 5)
        assert torch.equal(snapshot.state["w"], torch.full((50,), float(snapshot.state["n"])))
        if not files.died:
            assert operations > 5
            assert snapshot.state["n"] == 5
            return
    raise AssertionError("it never came to its end")


def test_what_lies_beyond_the_newest_does_not_outlive_it(tmp_path):
    """Where all were torn the training starts over: its first snapshot must not be thrown away for being older than those."""
    store = Store(str(tmp_path), keep=2)
    for position in (100, 101, 102):
        (tmp_path / f"{position:012d}.rank-0-of-1.snapshot").write_bytes(b"torn")
    assert store.read_newest(torch) is None
    written(store, 1, {"w": torch.ones(2)})
    assert store.positions() == [1]


def test_only_the_newest_few_are_kept(tmp_path):
    store = Store(str(tmp_path), keep=2)
    for position in range(1, 6):
        written(store, position, {"w": torch.ones(2)})
    (tmp_path / ".holdfast-4194304-0123456789abcdef.tmp").write_bytes(b"left by a process that is gone")
    store.prune(5)
    assert store.positions() == [5, 4]
    assert len(list(tmp_path.iterdir())) == 2
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_ranks_have_one_moment_at_which_it_counts(tmp_path):
    """Without every part there is no snapshot; and a part that is torn later takes all ranks back to the one before."""
    ranks = [Store(str(tmp_path), rank, 2) for rank in (0, 1)]
    for position in (1, 2):
        written(ranks[0], position, {"rank": 0})
        assert ranks[0].commit() is False
        assert [rank.positions() for rank in ranks] == [list(range(1, position))] * 2
        path = written(ranks[1], position, {"rank": 1})
        assert ranks[0].commit() is True
    assert [rank.read_newest(torch).state["rank"] for rank in ranks] == [0, 1]
    assert [rank.read_newest(torch).position for rank in ranks] == [2, 2]
    os.truncate(path, 100)
    assert [rank.read_newest(torch).position for rank in ranks] == [1, 1]
    assert Store(str(tmp_path)).read_newest(torch) is None


def test_a_tensor_in_two_places_is_kept_once():
    tensors = []
    one = torch.ones(3)
    kept = flatten(torch, {"model": one, "optimizer": [one, torch.zeros(2)]}, tensors)
    assert len(tensors) == 2
    back = unflatten(torch, json.loads(kept), tensors)
    assert back["model"] is back["optimizer"][0] is one
