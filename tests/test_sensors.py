"""Samples of an attempt, and sleep told from slowness."""

from __future__ import annotations

import subprocess
import sys
import time

from holdfast.machine import ProcessFacts, SystemMemory, this_machine
from holdfast.process.process_tree import RESCAN_EVERY, ProcessTree
from holdfast.process.sensors import ClockWatch, Sensors, free_disk
from holdfast.schema.events import Slept

MB = 1 << 20


class ScriptedMachine:
    """Processes as a table that tests rewrite; counts what is asked of it."""

    def __init__(self) -> None:
        self.table: dict[int, ProcessFacts] = {}
        self.asked: list[int] = []

    def add(
        self,
        pid: int,
        parent: int,
        *,
        started: float = 1.0,
        private: int = MB,
        shared: int = 0,
        cpu: float = 0.0,
        zombie: bool = False,
    ):
        self.table[pid] = ProcessFacts(pid, parent, started, private, shared, cpu, zombie)

    def pids(self):
        return list(self.table)

    def process(self, pid: int):
        self.asked.append(pid)
        return self.table.get(pid)

    def memory(self):
        return SystemMemory(16 << 30, 4 << 30, 3 * MB, 5 * MB, 16 << 30, "physical memory")


def numbers(alive) -> set[int]:
    return {one.pid for one in alive}


def test_a_sample_counts_shared_pages_once(tmp_path):
    """Private parts add up; the libraries that a parent and its workers share are counted as the largest one's."""
    machine = ScriptedMachine()
    machine.add(10, 1, private=900 * MB, shared=300 * MB, cpu=20.0)
    for worker in (11, 12):
        machine.add(worker, 10, private=50 * MB, shared=250 * MB, cpu=1.5)
    machine.add(99, 1, private=5000 * MB)
    sample = Sensors(machine, lambda: [10], tmp_path, lambda: 1000.0).sample()
    assert (sample.at, sample.rss, sample.processes) == (1000.0, 1300 * MB, 3)
    assert (sample.available, sample.swap, sample.swap_in) == (4 << 30, 3 * MB, 5 * MB)
    assert sample.cpu == 23.0
    assert sample.disk_free > 0


def test_descendants_are_found_at_any_depth_and_stay_ours():
    """A grandchild whose parent dies is handed to process 1, and still belongs to the attempt; a stranger never does."""
    machine = ScriptedMachine()
    machine.add(30, 20)
    machine.add(20, 10)
    machine.add(10, 5)
    machine.add(77, 1)
    tree = ProcessTree(machine)
    assert numbers(tree.update([10])) == {10, 20, 30}
    del machine.table[20]
    machine.add(30, 1)
    assert numbers(tree.update([10])) == {10, 30}
    assert tree.all_pids == {10, 20, 30}


def test_a_number_given_to_another_process_is_not_ours():
    """Process numbers come round: another start time means another process."""
    machine = ScriptedMachine()
    machine.add(10, 5)
    machine.add(11, 10, started=100.0)
    tree = ProcessTree(machine)
    tree.update([10])
    machine.add(11, 1, started=200.0)
    assert numbers(tree.update([10])) == {10}


def test_strangers_are_looked_at_once_and_again_after_a_while():
    """A busy desktop's hundreds of processes cost one look, not one for every sample."""
    machine = ScriptedMachine()
    machine.add(10, 5)
    for pid in range(1000, 1400):
        machine.add(pid, 1)
    tree = ProcessTree(machine)
    tree.update([10])
    assert len(machine.asked) == 401
    machine.asked.clear()
    machine.add(12, 10)
    assert numbers(tree.update([10])) == {10, 12}
    assert sorted(machine.asked) == [10, 12]
    for _ in range(RESCAN_EVERY - 2):
        tree.update([10])
    machine.asked.clear()
    tree.update([10])
    assert len(machine.asked) == 402


def test_a_root_that_was_a_stranger_is_taken_in():
    """A process that the probe reports later (it detached itself before we saw its parent) is ours from then on."""
    machine = ScriptedMachine()
    machine.add(10, 5)
    machine.add(60, 1)
    tree = ProcessTree(machine)
    assert numbers(tree.update([10])) == {10}
    assert numbers(tree.update([10, 60])) == {10, 60}


def test_zombies_hold_nothing_and_processor_time_never_falls():
    """A worker that ended takes its memory with it; the time it used stays in the sum."""
    machine = ScriptedMachine()
    machine.add(10, 5, cpu=10.0)
    machine.add(11, 10, cpu=4.0)
    tree = ProcessTree(machine)
    tree.update([10])
    assert tree.cpu == 14.0
    machine.add(11, 10, private=0, cpu=0.0, zombie=True)
    machine.add(10, 5, cpu=11.0)
    assert numbers(tree.update([10])) == {10}
    assert tree.cpu == 15.0
    machine.table.clear()
    assert tree.update([10]) == []
    assert tree.cpu == 15.0


def test_the_numbers_for_kill_evidence_include_the_root(tmp_path):
    """Even when it died before the first sample."""
    sensors = Sensors(ScriptedMachine(), lambda: [4242], tmp_path, time.time)
    assert sensors.sample().processes == 0
    assert sensors.pids == {4242}


def test_free_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    """The nearest folder above answers."""
    assert free_disk(tmp_path / "not" / "yet") > 0


def test_a_real_tree_in_other_sessions(tmp_path):
    """Children and grandchildren that moved to sessions of their own are counted; a sample of ten processes stays cheap."""
    program = (
        "import subprocess, sys, time\n"
        "kids = [subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(30)'], start_new_session=True)"
        " for _ in range(9)]\n"
        "print('up', flush=True); sys.stdin.read()\n"
        "for kid in kids: kid.kill()"
    )
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        sensors = Sensors(this_machine(), lambda: [child.pid], tmp_path, time.time)
        sample = sensors.sample()
        costs = []
        for _ in range(20):
            began = time.perf_counter()
            sensors.sample()
            costs.append(time.perf_counter() - began)
        child.communicate(b"")
    assert sample.processes == 10
    assert len(sensors.pids) == 10
    assert sample.rss > 10 * MB
    if sys.platform.startswith("linux"):
        assert min(costs) < 0.005


class Clocks:
    def __init__(self, asleep: float | None) -> None:
        self.wall, self.monotonic, self.asleep = 1_000_000.0, 50.0, asleep

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def watch(self) -> ClockWatch:
        return ClockWatch(lambda: self.asleep, lambda: self.wall, lambda: self.monotonic)


def test_exact_sleep_is_told_to_the_second():
    """Where the machine counts its sleep, that count is the event, and is told once."""
    clocks = Clocks(asleep=12.0)
    watch = clocks.watch()
    clocks.run(5)
    assert watch.check() is None
    clocks.asleep += 36000.25
    clocks.wall += 36000.25
    assert watch.check() == Slept(at=clocks.wall, seconds=36000.2)
    assert watch.check() is None


def test_short_sleeps_add_up():
    """A Mac that dozes off again and again for less than a second each time slept in sum."""
    clocks = Clocks(asleep=0.0)
    watch = clocks.watch()
    told = []
    for _ in range(5):
        clocks.run(10)
        clocks.asleep += 0.5
        told.append(watch.check())
    assert [one.seconds if one else None for one in told] == [None, 1.0, None, 1.0, None]


def test_a_set_clock_is_not_sleep_where_sleep_is_counted():
    """An hour's jump of the wall clock with no counted sleep was somebody setting the clock."""
    clocks = Clocks(asleep=0.0)
    watch = clocks.watch()
    clocks.wall += 3600
    assert watch.check() is None


def test_without_a_count_a_great_jump_is_sleep_and_a_small_or_backward_one_is_not():
    """A time server's steps, drift and a clock set back are no sleep; minutes gained at once are."""
    clocks = Clocks(asleep=None)
    watch = clocks.watch()
    for jump in (2.0, -3600.0, 29.0):
        clocks.run(10)
        clocks.wall += jump
        assert watch.check() is None
    for _ in range(100):
        clocks.run(10)
        clocks.wall += 0.5
        assert watch.check() is None
    clocks.run(10)
    clocks.wall += 600
    assert watch.check() == Slept(at=clocks.wall, seconds=600.0)


def test_a_slow_step_is_not_sleep():
    """Hours in which both clocks ran are slowness."""
    clocks = Clocks(asleep=None)
    watch = clocks.watch()
    clocks.run(40_000)
    assert watch.check() is None
