"""macOS behind the seam, from recorded text: nothing here needs a Mac."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from holdfast.machine import KillCounters
from holdfast.machine.commands import CommandOutput
from holdfast.machine.macos import MacMachine, footprint_reader
from holdfast.machine.macos_text import (
    describe_pressure,
    find_log_evidence,
    find_report_evidence,
    parse_swap_used,
    parse_sysctl_number,
    parse_vm_stat,
)

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               13567.
Pages active:                            510243.
Pages inactive:                          498112.
Pages speculative:                         9822.
Pages throttled:                              0.
Pages wired down:                        210431.
Pages purgeable:                           1203.
"Translation faults":                2305257803.
Pages copy-on-write:                  191839770.
Pages zero filled:                   1396362525.
Pages reactivated:                      1388257.
Pages purged:                            276010.
File-backed pages:                       301200.
Anonymous pages:                         716977.
Pages stored in compressor:             2410021.
Pages occupied by compressor:            821544.
Decompressions:                        90112233.
Compressions:                         120334455.
Pageins:                               28030700.
Pageouts:                                441190.
Swapins:                               12030110.
Swapouts:                              14022118.
"""
SYSCTL = """\
vm.swapusage: total = 4096.00M  used = 2743.50M  free = 1352.50M  (encrypted)
kern.memorystatus_vm_pressure_level: 2
"""
LOG = """\
Timestamp               Ty Process[PID:TID]
2026-07-06 16:47:11.978 E  kernel[0:1cd] low swap: failed to create swapfile
2026-07-06 16:47:12.978 E  kernel[0:1cd] low swap: failed to create swapfile
2026-07-06 16:50:17.591 Df kernel[0:1cd] [com.apple.xnu:memorystatus] memorystatus: killing_idle_process pid 386 [wallpaperexportd] jetsam_reason->osr_code: 9
2026-07-06 16:50:28.836 E  kernel[0:1cd] low swap: triggering no paging space action
2026-07-06 16:50:29.725 Df kernel[0:1cd] memorystatus: killing largest compressed process python3.11 [4242] 43350 MB
2026-07-06 16:50:31.000 Df kernel[0:1cd] memorystatus: killing_top_process pid 901 [node] jetsam_reason->osr_code: 2
"""


def test_vm_stat_and_what_is_available():
    """Available is total less app memory, wired and compressed, as Activity Monitor has it: on this starved 32 GB machine
    little, although half a million pages are called inactive."""
    seen = parse_vm_stat(VM_STAT)
    assert seen is not None
    assert seen.page == 16384
    assert seen.bytes("Swapins") == 12030110 * 16384
    assert seen.available(32 << 30) == (32 << 30) - (716977 - 1203 + 210431 + 821544) * 16384
    assert parse_vm_stat("vm_stat: command not found") is None


def test_swap_and_pressure():
    """sysctl's swap usage in bytes, and the pressure level by its name."""
    assert parse_swap_used(SYSCTL) == int(2743.5 * (1 << 20))
    assert parse_swap_used("sysctl: unknown oid") is None
    level = parse_sysctl_number(SYSCTL, "kern.memorystatus_vm_pressure_level")
    assert [describe_pressure(n) for n in (1, level, 4, None, 3)] == ["normal", "warning", "critical", None, "level 3"]


def test_the_kernels_words_about_us():
    """The kill of our process is told from that of another, routine kills are left out, and full swap is said once."""
    found = find_log_evidence(LOG, {4242})
    assert [e.source for e in found] == ["kernel log"] + ["kernel log, other"] * 3
    assert "killing largest compressed process python3.11 [4242] 43350 MB" in found[0].text
    assert "[node]" in found[1].text
    assert [e.text.split("] ")[-1] for e in found[2:]] == [
        "low swap: failed to create swapfile",
        "low swap: triggering no paging space action",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "memorystatus: killing largest compressed process Python [77] 198602 MB",
        "memorystatus: killing_specific_process pid 77 [python3.11] (per-process-limit 14) 8579568KB - memorystatus_available_pages: 40",
        "memorystatus: killing_top_process_elevated1 pid 77 [python] (vm-compressor-space-shortage 3 12s rf:- type:daemon) 12KB",
        "memorystatus: killing process pid 77 [python] in high band",
        "low swap: killing largest compressed process with pid 77 (python3.9) and size 46893 MB",
        "low swap: killing pid 77 (python)",
    ],
)
def test_the_forms_of_ten_years(line):
    """Every form that macOS has used since 10.13 names the process, and a process with another number is not ours."""
    stamped = f"2018-10-03 21:55:21.478932+0000 0x16b      Default     0x0   0   0    kernel: {line}"
    assert [e.source for e in find_log_evidence(stamped, {77})] == ["kernel log"]
    assert [e.source for e in find_log_evidence(stamped, {78})] == ["kernel log, other"]


def crash(pid: int = 4242, **more: object) -> str:
    head = {
        "app_name": "Python",
        "timestamp": "2026-08-11 18:48:03.00 +0800",
        "bug_type": "309",
        "os_version": "macOS 15.5 (24F74)",
    }
    body = {
        "pid": pid,
        "procName": "Python",
        "exception": {"codes": "0x0, 0x0", "rawCodes": [0, 0], "type": "EXC_CRASH", "signal": "SIGABRT"},
        "termination": {
            "flags": 0,
            "code": 6,
            "namespace": "SIGNAL",
            "indicator": "Abort trap: 6",
            "byProc": "Python",
            "byPid": pid,
        },
        "asi": {"libsystem_c.dylib": ["abort() called"]},
        "faultingThread": 1,
        "threads": [
            {"id": 1, "frames": [{"imageOffset": 1, "symbol": "mach_msg_trap", "imageIndex": 0}]},
            {
                "triggered": True,
                "id": 2,
                "frames": [
                    {"imageOffset": 8, "symbol": "__pthread_kill", "symbolLocation": 8, "imageIndex": 0},
                    {"imageOffset": 9, "symbol": "__kmp_abort_process", "symbolLocation": 36, "imageIndex": 1},
                ],
            },
        ],
        "usedImages": [
            {"name": "libsystem_kernel.dylib", "path": "/usr/lib/system/libsystem_kernel.dylib"},
            {"name": "libomp.dylib", "path": "/site-packages/torch/lib/libomp.dylib"},
            {"name": "libomp.dylib", "path": "/site-packages/faiss/.dylibs/libomp.dylib"},
        ],
    }
    return json.dumps(head) + "\n" + json.dumps({**body, **more}, indent=2)


def test_a_crash_report_says_how_and_where():
    """Exception, termination, the library's note, the stack's top, and that two OpenMP runtimes were loaded (F25)."""
    found = find_report_evidence(crash(), {4242})
    assert found is not None
    assert found.source == "crash report"
    assert found.text == (
        "Python [4242]; EXC_CRASH (SIGABRT); termination: SIGNAL 6 Abort trap: 6 by Python; abort() called; "
        "stack: libsystem_kernel.dylib: __pthread_kill < libomp.dylib: __kmp_abort_process; "
        "2 OpenMP runtimes were loaded: /site-packages/faiss/.dylibs/libomp.dylib, /site-packages/torch/lib/libomp.dylib"
    )


def test_a_segfault_names_its_address():
    """The exception's subtype is kept."""
    text = crash(exception={"type": "EXC_BAD_ACCESS", "signal": "SIGSEGV", "subtype": "KERN_INVALID_ADDRESS at 0x8"})
    found = find_report_evidence(text, {4242})
    assert found is not None
    assert "EXC_BAD_ACCESS (SIGSEGV), KERN_INVALID_ADDRESS at 0x8" in found.text


def test_a_jetsam_report_names_the_reason():
    """Only a process with a reason was killed: reports list every process of the machine."""
    body = {
        "largestProcess": "Python",
        "memoryStatus": {"pageSize": 16384},
        "processes": [
            {"pid": 1, "name": "launchd", "rpages": 10},
            {"pid": 4242, "name": "Python", "rpages": 655360, "reason": "vm-compressor-space-shortage"},
        ],
    }
    text = json.dumps({"bug_type": "298", "timestamp": "2026-05-15 22:03:57.00 +0800"}) + "\n" + json.dumps(body)
    found = find_report_evidence(text, {4242})
    assert found is not None
    assert found.source == "jetsam report"
    assert "vm-compressor-space-shortage, 10240 MB resident" in found.text
    assert find_report_evidence(text, {1}) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "not json\n{}", '{"bug_type": "309"}\n[1]', '{"bug_type": "309"}\n{"pid": 5', "[1]\n{}"]
)
def test_a_damaged_report_is_no_evidence(text):
    """Half-written and foreign files are passed over."""
    assert find_report_evidence(text, {5}) is None
    assert find_report_evidence(crash(threads="x", usedImages=None, asi=3, faultingThread=99), {4242}) is not None


def mac(tmp_path, *, log: CommandOutput | None = None) -> MacMachine:
    told = {"vm_stat": CommandOutput(VM_STAT), "sysctl": CommandOutput(SYSCTL), "log": log or CommandOutput(LOG)}
    return MacMachine(
        lambda command, _: told[command[0]], footprint=lambda _: 9 << 30, reports=(tmp_path, tmp_path / "none")
    )


def test_a_macs_memory_is_read_through_the_seam(tmp_path):
    """The commands' text becomes the seam's values, and a process's memory is its footprint: RSS does not see the GPU's."""
    machine = mac(tmp_path)
    memory = machine.memory()
    assert (memory.swap_used, memory.pressure) == (int(2743.5 * (1 << 20)), "warning")
    assert memory.swap_in == 12030110 * 16384
    facts = machine.process(os.getpid())
    assert facts is not None
    assert facts.private == 9 << 30


def test_a_macs_evidence(tmp_path):
    """Log and reports together; a report older than the attempt, or about another process, is not looked into."""
    now = time.time()
    (tmp_path / "Python-2026-08-11-184803.ips").write_text(crash())
    (tmp_path / "Python-old.ips").write_text(crash())
    os.utime(tmp_path / "Python-old.ips", (now - 999, now - 999))
    (tmp_path / "Other.ips").write_text(crash(pid=7))
    found = mac(tmp_path).kill_evidence(KillCounters({}, 0.0), [4242], now - 60)
    assert [e.source for e in found if e.source != "kernel log, other"] == ["kernel log", "crash report"]


def test_a_log_that_does_not_answer_in_time(tmp_path):
    """The unified log can be slow: what it said until then counts, and that it was cut off is said."""
    cut = CommandOutput(LOG.splitlines()[1], "log did not finish within 2.4 s")
    found = mac(tmp_path, log=cut).kill_evidence(KillCounters({}, 0.0), [4242], time.time())
    assert [e.source for e in found] == ["kernel log, other", "not readable"]


def test_nothing_of_macos_is_needed(tmp_path):
    """Elsewhere footprints and exact sleep are unknown, commands are missing, and every call still answers."""
    assert footprint_reader()(os.getpid()) is None or sys.platform == "darwin"
    machine = MacMachine(lambda *_: CommandOutput("", "could not be run"), reports=(tmp_path,))
    assert machine.memory().pressure is None
    asleep = machine.seconds_asleep()
    assert asleep is None or asleep >= 0
    with machine.keep_awake() as result:
        assert "awake" in result.message
