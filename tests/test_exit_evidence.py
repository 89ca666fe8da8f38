"""The facts of an end, from exit codes, signals, the machine and the last lines of output."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.exits import exception_line
from holdfast.process.exit_evidence import collect_exit_evidence, last_lines, signal_from_exit_code
from holdfast.schema.events import AttemptEnded, Evidence


def sources(found: list[Evidence]) -> list[str]:
    return [one.source for one in found]


def test_a_clean_end_has_no_evidence():
    """Exit 0, and exit 1 with a traceback, are no business of the system's."""
    assert collect_exit_evidence(0, None) == []
    assert collect_exit_evidence(1, None, ["Traceback (most recent call last):", "ValueError: bad"]) == []


def test_the_signal_of_the_process_itself():
    """By its name, or as the negative code that Python's subprocess gives."""
    assert collect_exit_evidence(None, "SIGKILL") == [Evidence("signal", "the process was killed by SIGKILL")]
    assert collect_exit_evidence(-6, None) == [Evidence("signal", "the process was killed by SIGABRT")]
    assert collect_exit_evidence(-200, None) == [Evidence("signal", "the process was killed by signal 200")]


@pytest.mark.parametrize(
    ("code", "name"), [(137, "SIGKILL"), (134, "SIGABRT"), (139, "SIGSEGV"), (143, "SIGTERM"), (130, "SIGINT")]
)
def test_a_shells_exit_code_is_translated(code, name):
    """A shell or launcher around the training passes on 128 + n, and the fact says so."""
    assert signal_from_exit_code(code) == name
    assert collect_exit_evidence(code, None) == [
        Evidence("exit code", f"{code} = 128 + {code - 128}: {name}, passed on by a shell or launcher")
    ]


@pytest.mark.parametrize("code", [None, 0, 1, 2, 128, 255])
def test_codes_that_mean_no_signal(code):
    """Ordinary codes are left alone."""
    assert signal_from_exit_code(code) is None
    assert collect_exit_evidence(code, None) == []


def test_the_machines_evidence_is_kept_in_order():
    """Signal first, then what the machine said, then what was printed."""
    system = [Evidence("cgroup", "oom_kill rose"), Evidence("not readable", "kernel log: no")]
    found = collect_exit_evidence(-9, "SIGKILL", ["zsh: killed     python train.py"], system)
    assert sources(found) == ["signal", "cgroup", "not readable", "last output"]


TORCHRUN = """\
E0409 07:28:49.531000 1359 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 812917) of binary: /env/bin/python
W0409 07:28:49.531000 1359 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 812914 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : -9 (pid: 812917)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 812917
""".splitlines()


def test_torchruns_report_of_a_killed_worker():
    """The launcher itself ends with 1; its lines name the worker's signal. Its own SIGTERM to the others is no cause."""
    found = collect_exit_evidence(1, None, TORCHRUN)
    assert sources(found) == ["torchrun"] * 3
    assert all("SIGKILL" in one.text for one in found)
    assert not any("SIGTERM" in one.text for one in found)


def test_a_spawned_process_and_a_loaders_worker():
    """torch.multiprocessing and the DataLoader say of their own what happened."""
    lines = [
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV",
        "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 12346, 12347) exited unexpectedly",
    ]
    found = collect_exit_evidence(1, None, lines)
    assert sources(found) == ["torchrun", "data loader", "data loader"]
    assert "(SIGKILL)" in found[1].text
    assert found[2].text == lines[2]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("zsh: killed     python train.py", "SIGKILL"),
        ("zsh: abort      python train.py", "SIGABRT"),
        ("zsh: segmentation fault  python train.py", "SIGSEGV"),
        ("zsh: illegal hardware instruction  python", "SIGILL"),
        ("Killed: 9", "SIGKILL"),
        ("Killed", "SIGKILL"),
        ("Abort trap: 6", "SIGABRT"),
        ("Aborted (core dumped)", "SIGABRT"),
        ("Segmentation fault: 11", "SIGSEGV"),
        ("Segmentation fault (core dumped)", "SIGSEGV"),
        ("Bus error: 10", "SIGBUS"),
        ("train.sh: line 3:  4242 Killed                  python train.py", "SIGKILL"),
        ("/bin/sh: line 1: 42519 Abort trap: 6           python train.py", "SIGABRT"),
        ("Fatal Python error: Segmentation fault", "SIGSEGV"),
        ("Fatal Python error: Aborted", "SIGABRT"),
    ],
)
def test_what_shells_and_the_interpreter_say_of_a_signal(line, name):
    """Every form is known for the signal it means."""
    assert collect_exit_evidence(1, None, [line]) == [Evidence("last output", f"{line} ({name})")]


@pytest.mark.parametrize(
    "line",
    [
        "Killed 5 stale workers",
        "epoch 3: killed",
        "aborted transaction, retrying",
        "bash: line 1: killed_rows: command not found",
        "best model killed: 9 layers pruned",
        "SIGKILL",
    ],
)
def test_ordinary_lines_are_not_taken_for_it(line):
    """A training may print such words."""
    assert collect_exit_evidence(1, None, [line]) == []


def test_a_line_said_many_times_is_told_once_and_long_output_is_bounded():
    """Only the newest lines are looked at, each once, a dozen at most."""
    assert len(collect_exit_evidence(1, None, ["Killed"] * 500)) == 1
    assert collect_exit_evidence(1, None, ["Killed", *["step"] * 300]) == []
    many = [f"Signal 9 (SIGKILL) received by PID {n}" for n in range(100)]
    assert len(collect_exit_evidence(1, None, many)) == 12


def test_a_long_traceback_is_kept_from_its_head():
    """Forty lines are enough, unless the traceback that ends there began earlier; two hundred are the most."""
    noise = [f"line {n}" for n in range(300)]
    frames = ["Traceback (most recent call last):", *[f"  frame {n}" for n in range(80)], "ValueError: x"]
    assert last_lines([*noise, *frames]) == frames
    assert last_lines(noise) == noise[-40:]
    assert last_lines([*noise, *frames[:1], *noise[:250]]) == noise[210:250]
    assert last_lines(["only this"]) == ["only this"]


def test_what_a_loaders_thread_raises_afterwards_is_not_the_cause():
    """Its workers are gone when the training has failed: that is told in the last lines, and explains nothing."""
    main = [
        "Traceback (most recent call last):",
        '  File "train.py", line 8, in <module>',
        "NotImplementedError: no such operator",
    ]
    thread = [
        "Exception in thread Thread-1 (_pin_memory_loop):",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ]
    for words in ([*main, *thread], [*thread, *main]):
        gone = AttemptEnded(at=1.0, attempt=1, code=1, last_lines=words)
        assert exception_line(gone) == "NotImplementedError: no such operator"
    alone = AttemptEnded(at=1.0, attempt=1, code=1, last_lines=thread)
    assert exception_line(alone) == thread[-1]
