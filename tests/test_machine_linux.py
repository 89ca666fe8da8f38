"""Linux behind the seam: memory and its limits, counters and logs of kills, and keeping awake."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.machine import KillCounters, this_machine
from holdfast.machine.cgroups import find_memory_groups
from holdfast.machine.commands import CommandOutput, run_command
from holdfast.machine.keep_awake import HelperKeepsAwake
from holdfast.machine.kernel_log import (
    find_daemon_evidence,
    find_kernel_evidence,
    parse_dmesg,
    parse_journal,
    parse_kmsg,
)
from holdfast.machine.linux import LinuxMachine, parse_process
from holdfast.machine.psutil_machine import PsutilMachine
from holdfast.process.exit_evidence import collect_exit_evidence
from holdfast.schema.events import Evidence

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc")

MEMINFO = """\
MemTotal:       24684100 kB
MemFree:        21903812 kB
MemAvailable:   23251872 kB
SwapTotal:       2097148 kB
SwapFree:        1048572 kB
HugePages_Total:       0
"""
MOUNTS_V2 = (
    "30 23 0:26 / {top} rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
)
MOUNTS_V1 = """\
34 31 0:31 / {top}/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / {top}/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / {top}/unified rw,relatime - cgroup2 cgroup2 rw"""

DMESG = """\
[ 7063.247399] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,task=python3,pid=63214,uid=1000
[ 7063.247407] Memory cgroup out of memory: Killed process 63214 (python3) total-vm:31494680kB, anon-rss:16499200kB, file-rss:52176kB, shmem-rss:92kB, UID:1000 pgtables:1372kB oom_score_adj:0
[ 7063.263325] oom_reaper: reaped process 63214 (python3), now anon-rss:0kB, file-rss:52176kB, shmem-rss:92kB
[ 7093.000000] Out of memory: Killed process 4242 (firefox) total-vm:9964kB, anon-rss:4288kB, file-rss:3028kB, shmem-rss:0kB
"""


def fake_proc(tmp_path: Path, cgroup: str, mounts: str, vmstat: str = "pswpin 100\npswpout 7\noom_kill 0\n") -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "vmstat").write_text(vmstat)
    (proc / "self/cgroup").write_text(cgroup)
    (proc / "self/mountinfo").write_text(mounts)
    return proc


def machine_at(proc: Path, answers: dict[str, CommandOutput] | None = None) -> LinuxMachine:
    told = answers or {}
    return LinuxMachine(
        proc, proc / "no-kmsg", lambda command, _: told.get(command[0], CommandOutput("", "not installed"))
    )


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_without_limits_memory_is_the_machines(tmp_path):
    """Total, available, used swap and bytes swapped in are what /proc says."""
    memory = machine_at(fake_proc(tmp_path, "0::/\n", "")).memory()
    assert (memory.total, memory.limit, memory.limited_by) == (24684100 * 1024, 24684100 * 1024, "physical memory")
    assert memory.available == 23251872 * 1024
    assert memory.swap_used == (2097148 - 1048572) * 1024
    assert memory.swap_in == 100 * os.sysconf("SC_PAGE_SIZE")


def test_the_tightest_limit_of_version_2_counts(tmp_path):
    """A limit above our own group binds us too, and what is left below it is what is available; idle cache counts as left."""
    top = tmp_path / "cgroup"
    write(top / "user.slice", memory__max=8 << 30, memory__current=6 << 30)
    write(top / "user.slice/job", memory__max="max", memory__current=6 << 30)
    (top / "user.slice/memory.stat").write_text(f"anon {5 << 30}\ninactive_file {1 << 30}\n")
    memory = machine_at(fake_proc(tmp_path, "0::/user.slice/job\n", MOUNTS_V2.format(top=top))).memory()
    assert (memory.limit, memory.limited_by) == (8 << 30, "cgroup /user.slice")
    assert memory.available == 3 << 30


def test_the_limit_of_version_1_beside_an_empty_version_2(tmp_path):
    """A machine with both versions mounted (as the one this was written on) is read in the one that has the memory."""
    top = tmp_path / "cgroup"
    write(top / "memory/box/1", memory__limit_in_bytes=4 << 30, memory__usage_in_bytes=1 << 30)
    write(top / "memory/box", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=2 << 30)
    write(top / "unified")
    text = "9:name=systemd:/\n4:memory:/box/1\n3:cpuset:/\n0::/\n"
    memory = machine_at(fake_proc(tmp_path, text, MOUNTS_V1.format(top=top))).memory()
    assert (memory.limit, memory.limited_by) == (4 << 30, "cgroup /box/1")
    assert memory.available == 3 << 30


def test_a_container_shows_only_its_own_part_of_the_tree():
    """The mount's root is taken off the path; a path outside of the mount ends at the mount itself."""
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory\\040here ro - cgroup cgroup rw,memory"
    inside = find_memory_groups("4:memory:/docker/abc/job\n", mount)
    assert [(g.name, g.own) for g in inside] == [("/job", True), ("/", False)]
    assert str(inside[0].folder) == "/sys/fs/cgroup/memory here/job"
    assert [g.name for g in find_memory_groups("4:memory:/../elsewhere\n", mount)] == ["/"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_counted_by_our_cgroup_is_evidence(tmp_path, version):
    """oom_kill of memory.events (v2) or memory.oom_control (v1) that rose since the attempt began is told, once."""
    top = tmp_path / "cgroup"
    if version == 2:
        proc = fake_proc(tmp_path, "0::/a/job\n", MOUNTS_V2.format(top=top))
        groups, file = [top / "a", top / "a/job"], "memory.events"
        hits = {}
    else:
        proc = fake_proc(tmp_path, "4:memory:/a/job\n", MOUNTS_V1.format(top=top))
        groups, file = [top / "memory/a/job"], "memory.oom_control"
        hits = {"memory__failcnt": 3}
    for group in groups:
        write(group, **hits)
        (group / file).write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
    machine = machine_at(proc, {"dmesg": CommandOutput("")})
    before = machine.kill_counters()
    assert [e for e in machine.kill_evidence(before, {1}, time.time()) if e.source != "not readable"] == []
    for group in groups:
        (group / file).write_text("low 0\nhigh 0\nmax 8\noom 2\noom_kill 3\n")
        if version == 1:
            (group / "memory.failcnt").write_text("8\n")
    (proc / "vmstat").write_text("oom_kill 1\n")
    told = [e for e in machine.kill_evidence(before, {1}, time.time()) if e.source != "not readable"]
    assert [e.source for e in told] == ["cgroup", "cgroup limit", "machine counter"]
    assert told[0].text == "oom_kill of cgroup /a/job increased by 1: the kernel killed in it for lack of memory"
    assert "5 times" in told[1].text


def test_a_kill_in_a_group_above_is_told_as_such(tmp_path):
    """When only a group above ours counted a kill, the victim may have been another's process, and the source says so."""
    top = tmp_path / "cgroup"
    for group in (top / "a", top / "a/job"):
        write(group)
        (group / "memory.events").write_text("oom_kill 0\n")
    machine = machine_at(fake_proc(tmp_path, "0::/a/job\n", MOUNTS_V2.format(top=top)), {"dmesg": CommandOutput("")})
    before = machine.kill_counters()
    (top / "a/memory.events").write_text("oom_kill 1\n")
    assert machine.kill_evidence(before, {1}, time.time())[0].source == "cgroup above"


def test_kernel_lines_about_our_process_are_told_from_others():
    """Lines are matched by process number; a kill of somebody else's process is kept apart, its reaping is left out."""
    found = find_kernel_evidence(parse_dmesg(DMESG), {63214}, since=7000.0, until=7100.0)
    assert [e.source for e in found] == ["kernel log"] * 3 + ["kernel log, other"]
    assert found[1].text.startswith("Memory cgroup out of memory: Killed process 63214 (python3)")
    assert "firefox" in found[3].text


def test_lines_from_before_the_attempt_are_not_ours():
    """The same process number in an older line was another process."""
    assert find_kernel_evidence(parse_dmesg(DMESG), {63214, 4242}, since=8000.0, until=8100.0) == []


@pytest.mark.parametrize(
    "line",
    [
        "Killed process 2603 (flasherav) total-vm:1498536kB, anon-rss:721784kB, file-rss:4228kB",
        "Out of memory: Kill process 2603 (bash) score 572 or sacrifice child",
        "Killed process 2603, UID 0, (FlowCon.fresher) total-vm:3098244kB, anon-rss:1157280kB, file-rss:36kB",
        "python3[2603]: segfault at 8 ip 00007f2c11d98cf0 sp 00007ffd6a error 4 in libgomp.so.1.0.0[7f2c11d6b000+2e000]",
        "traps: python[2603] general protection fault ip:7f5d sp:7ffc error:0 in libtorch_cpu.so[7f5c+1c00000]",
        "traps: python[2603] trap invalid opcode ip:55d sp:7ffc error:0",
    ],
)
def test_old_and_new_kernels_words(line):
    """The forms of kernels from 2.6 on to today, for kills and for crashes."""
    assert find_kernel_evidence(parse_kmsg(f"6,339,5140900,-;{line}"), {2603}, 0.0, 6.0) == [
        Evidence("kernel log", line)
    ]
    assert [e.source for e in find_kernel_evidence(parse_kmsg(f"6,339,5140900,-;{line}"), {7}, 0.0, 60.0)] in (
        [],
        ["kernel log, other"],
    )


def test_a_crash_in_a_thread_is_matched_by_name_and_time():
    """Crash lines name the thread, whose number we do not know: a Python's near the end is kept, with a source of its own."""
    line = "pt_main_thread[999]: segfault at 8 ip 00007f2c sp 00007ffd error 4 in libgomp.so.1.0.0[7f2c+2e000]"
    kernel = parse_dmesg(f"[  100.000000] {line}")
    assert find_kernel_evidence(kernel, {5}, 50.0, 103.0) == [Evidence("kernel log, thread", line)]
    assert find_kernel_evidence(kernel, {5}, 50.0, 500.0) == []
    assert (
        find_kernel_evidence(parse_dmesg(f"[  100.0] yolo{line[14:]}"), {5}, 50.0, 103.0) != []
    )  # a framework's program
    assert find_kernel_evidence(parse_dmesg(f"[  100.0] chrome{line[14:]}"), {5}, 50.0, 103.0) == []


def test_a_record_with_continuation_lines():
    """The indented lines after a record of /dev/kmsg are properties, not messages; garbage is passed over."""
    text = "4,1,1000000,-;first\n SUBSYSTEM=acpi\n DEVICE=+acpi\nrubbish\n6,2,2000000,c;se;cond\n"
    assert [(one.at, one.text) for one in parse_kmsg(text)] == [(1.0, "first"), (2.0, "se;cond")]


JOURNAL = """\
1721283797.100000 box earlyoom[1233]: mem avail:  2430 of 31808 MiB ( 7.64%), swap free: 1419 of 15903 MiB ( 8.93%)
1721283797.200000 box earlyoom[1233]: sending SIGTERM to process 29410 uid 1000 "python": badness 1264, VmRSS 23964 MiB
1721283797.300000 box earlyoom[1233]: sending SIGTERM to process 11567 uid 1000 "electron": oom_score 869, VmRSS 17 MiB, cmdline "x"
1721283798.000000 box systemd-oomd[840]: Killed /user.slice/user-1001.slice/app.slice/vte-spawn-dbb4.scope due to memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity
1721283799.000000 box systemd-oomd[840]: Marked /system.slice/cron.service for killing due to memory pressure for /system.slice being 85.03% > 80.00%
"""


def test_earlyoom_and_oomd_are_told_by_process_and_by_cgroup():
    """earlyoom names a process, systemd-oomd a group with all that is in it; others' ends are kept apart."""
    own = ["/user.slice/user-1001.slice/app.slice/vte-spawn-dbb4.scope/inner"]
    found = find_daemon_evidence(parse_journal(JOURNAL), {29410}, own, since=1721283790.0)
    assert [e.source for e in found] == ["journal", "journal", "journal, other", "journal, other"]
    assert "29410" in found[0].text
    assert "vte-spawn" in found[1].text


def test_the_journal_is_asked_where_dmesg_refuses(tmp_path):
    """A user who may not run dmesg may often read the same lines through the journal."""
    lines = "1721283797.100000 box kernel: Out of memory: Killed process 77 (python) total-vm:1kB\n"

    def answer(command, _):
        if command[0] == "dmesg":
            return CommandOutput(
                "", "dmesg failed with exit code 1: dmesg: read kernel buffer failed: Operation not permitted"
            )
        return CommandOutput(lines) if "-k" in command else CommandOutput("")

    proc = fake_proc(tmp_path, "", "")
    machine = LinuxMachine(proc, proc / "no-kmsg", answer)
    assert [e.source for e in machine.kill_evidence(KillCounters({}, 0.0), {77}, 1721283790.0)] == ["kernel log"]


def test_what_cannot_be_read_is_said(tmp_path):
    """No evidence because nothing happened, and none because nothing may be read, are told apart; nothing raises."""
    told = machine_at(fake_proc(tmp_path, "", "")).kill_evidence(KillCounters({}, 0.0), {1}, time.time())
    assert [e.source for e in told] == ["not readable", "not readable"]
    assert told[0].text.startswith("kernel log: ")
    assert LinuxMachine(tmp_path / "nothing", tmp_path / "no-kmsg", lambda *_: CommandOutput("")).memory().total == 0


def test_a_process_that_names_itself_oddly():
    """Fields are counted from the last bracket: a name may hold brackets and blanks."""
    stat = b"42 (py) (x 1) S 7 42 42 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 12345 999 10 18446744073709551615"
    facts = parse_process(42, stat, b"500 100 30 1 0 50 0")
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    assert (facts.parent, facts.private, facts.shared) == (7, 70 * page, 30 * page)
    assert (facts.cpu, facts.started, facts.zombie) == (200 / tick, 12345 / tick, False)


def test_a_command_that_does_not_answer_is_given_up():
    """What it had said so far is kept, with the reason; a command that is missing or fails is a reason, not an error."""
    late = run_command(["sh", "-c", "echo early; exec sleep 20"], 0.3)
    assert late.text in ("early\n", "")
    assert "did not finish within 0.3 s" in str(late.problem)
    assert "could not be run" in str(run_command(["holdfast-no-such-command"], 1.0).problem)
    assert run_command(["sh", "-c", "echo why >&2; exit 3"], 1.0).problem == "sh failed with exit code 3: why"


def test_the_helper_that_keeps_awake_lives_from_start_to_stop():
    """The sentence says that it holds; after stop the helper is gone."""
    command = ["sh", "-c", "echo held; cat >/dev/null"]
    awake = HelperKeepsAwake(command, "a helper", confirms_start=True)
    with awake as result:
        assert result == (True, "The machine is kept awake by a helper.")
        helper = awake._helper
        assert helper is not None
        assert helper.poll() is None
    assert helper.poll() is not None


@pytest.mark.parametrize("confirms_start", [True, False])
def test_a_helper_that_may_not_is_told(confirms_start):
    """Refusal is a sentence with the helper's own reason."""

    def launch_and_let_end(*command, **how):
        helper = subprocess.Popen(*command, **how)
        helper.wait()
        return helper

    command = ["sh", "-c", "echo Failed to inhibit: Access denied; exit 1"]
    awake = HelperKeepsAwake(command, "x", confirms_start=confirms_start, launch=launch_and_let_end)
    refusal = "Holdfast does not keep the machine awake: sh reported: Failed to inhibit: Access denied."
    assert awake.start() == (False, refusal)
    missing = HelperKeepsAwake(["holdfast-no-such-command"], "x", confirms_start=confirms_start)
    assert "could not be run" in missing.start().message


def test_the_helper_never_outlives_us():
    """SIGKILL of the process that holds it ends the helper too: its standard input closes."""
    program = (
        "import time; from holdfast.machine.keep_awake import HelperKeepsAwake\n"
        "a = HelperKeepsAwake(['sh', '-c', 'echo held; cat >/dev/null'], 'x', confirms_start=True); a.start()\n"
        "print(a._helper.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        helper = int(owner.stdout.readline())
        assert alive(helper)
        owner.kill()
    end = time.monotonic() + 5
    while alive(helper) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(helper)


def alive(pid: int) -> bool:
    facts = PsutilMachine().process(pid)
    return facts is not None and not facts.zombie


@on_linux
def test_this_machine_answers():
    """On the machine of the tests: memory is plausible, evidence comes within its time, keeping awake gives a sentence."""
    machine = this_machine()
    memory = machine.memory()
    assert 0 < memory.available <= memory.total
    assert memory.limit <= memory.total
    began = time.monotonic()
    machine.kill_evidence(machine.kill_counters(), {os.getpid()}, time.time())
    assert time.monotonic() - began < 3.5
    assert machine.seconds_asleep() is not None
    with machine.keep_awake() as result:
        assert "awake" in result.message


def test_where_nothing_puts_the_machine_to_sleep_there_is_nothing_to_say(tmp_path):
    """A container has no systemd of its own: that is no reason to warn."""
    said = LinuxMachine(systemd=tmp_path / "none").keep_awake().start()
    assert said.kept
    assert said.message.startswith("The machine does not need to be kept awake")


def test_a_machine_of_no_known_kind_still_measures():
    """The psutil-only machine has memory and processes, and says what it does not have."""
    machine = PsutilMachine()
    assert machine.memory().total > 0
    facts = machine.process(os.getpid())
    assert facts is not None
    assert facts.private > 0
    assert machine.process(2**22 + 5) is None
    assert machine.seconds_asleep() is None
    assert [e.source for e in machine.kill_evidence(machine.kill_counters(), {1}, 0.0)] == ["not readable"]
    assert "does not keep the machine awake" in machine.keep_awake().start().message


@on_linux
def test_a_real_sigkill_is_a_signal_without_memory_evidence():
    """`kill -9` by somebody leaves the signal and no word of memory about that process: what the two kinds of kill differ in."""
    machine, began = this_machine(), time.time()
    before = machine.kill_counters()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        child.send_signal(signal.SIGKILL)
        code = child.wait()
    found = collect_exit_evidence(code, None, (), machine.kill_evidence(before, {child.pid}, began))
    assert found[0] == Evidence("signal", "the process was killed by SIGKILL")
    assert not [e for e in found if e.source in ("cgroup", "kernel log", "journal")]


@on_linux
def test_a_real_kill_for_memory_is_counted():
    """A process that outgrows its cgroup is killed by the kernel, and the evidence names the cgroup.

    Needs a memory cgroup that the tests own: HOLDFAST_TEST_CGROUP names the folder of one in which they may create another.
    It is never guessed: a kill in a group that belongs to a session or a container is counted against those.
    """
    parent = os.environ.get("HOLDFAST_TEST_CGROUP")
    if not parent:
        pytest.skip("HOLDFAST_TEST_CGROUP names no memory cgroup that was given to the tests")
    group = Path(parent, f"holdfast-{os.getpid()}")
    group.mkdir()
    try:
        limit = group / "memory.max"
        (limit if limit.exists() else group / "memory.limit_in_bytes").write_text(str(200 << 20))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        program = (
            "import os, subprocess, sys, time; from holdfast.machine import this_machine\n"
            f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "machine, began = this_machine(), time.time(); before = machine.kill_counters()\n"
            'eat = \'open("/proc/self/oom_score_adj", "w").write("1000"); x = bytearray(b"x") * (1 << 30)\'\n'
            "child = subprocess.Popen([sys.executable, '-c', eat]); child.wait()\n"
            "print(child.returncode, *(e.source for e in machine.kill_evidence(before, {child.pid}, began)), sep='|')"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        code, *sources = done.stdout.strip().split("|")
        assert int(code) == -signal.SIGKILL
        assert "cgroup" in sources
    finally:
        group.rmdir()
