"""The child process as the supervisor's loop sees it, with its output in pipes. The terminal has tests of its own."""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from playing import Played, has_ended, python

from holdfast.process.child_process import ChildProcess
from holdfast.process.output_log import newest_part, older_part, read_output
from holdfast.process.terminal import Terminal
from holdfast.schema.errors import CommandNotRunnable

PIPES = {"stdin": "null", "stdout": "pipe", "stderr": "pipe"}


@pytest.fixture
def play(tmp_path):
    with Path(os.devnull).open() as null:

        def start(command, **options):
            return Played(tmp_path, command, **{**PIPES, "stdin": null.fileno(), **options})

        yield start


@pytest.mark.parametrize(
    ("code", "exit_code", "signal_name"),
    [
        ("print('done')", 0, None),
        ("raise SystemExit(3)", 3, None),
        ("import os; os._exit(7)", 7, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
        ("import os; os.abort()", None, "SIGABRT"),
        ("import os; os.execvp('sh', ['sh', '-c', 'exit 9'])", 9, None),
    ],
)
def test_how_it_ended_is_told(play, code, exit_code, signal_name):
    """Exit codes and signals are those of the child, also when it ends abruptly or becomes another program."""
    with play(python(code)) as played:
        exited = played.finish()
    assert (exited["code"], exited["signal"]) == (exit_code, signal_name)


def test_nothing_is_lost_of_what_a_killed_child_wrote(play):
    """Output that still sits in the pipe when the child is killed reaches the user and the record."""
    with play(python("import os, signal; os.write(1, b'x' * 60000); os.kill(os.getpid(), signal.SIGKILL)")) as played:
        played.finish()
    assert played.piped["stdout"] == played.log("stdout") == b"x" * 60000


def test_a_hundred_megabytes_pass_unchanged(play):
    """Every byte passes in order; the record keeps the beginning and the end within its bound, and says what it left out."""
    code = """
import hashlib, os
digest = hashlib.sha256()
for n in range(1600):
    block = (b"%06d " % n + bytes(range(256)) * 256)[:65536]
    digest.update(block)
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
os.write(2, digest.hexdigest().encode())
"""
    with play(python(code)) as played:
        played.finish()
    shown = played.piped["stdout"]
    assert len(shown) == 1600 * 65536
    assert hashlib.sha256(shown).hexdigest().encode() == played.piped["stderr"]
    log = played.folder / "stdout.log"
    assert sum(part.stat().st_size for part in (log, older_part(log), newest_part(log))) <= 64 << 20
    first, last = log.read_bytes(), newest_part(log).read_bytes().split(b"\n", 1)[1]
    assert shown.startswith(first)
    assert shown.endswith(last)
    assert any(b"bytes left out]" in chunk for chunk in read_output(log))


def test_streams_are_what_they_were(play):
    """Streams that were no terminal are none for the child, which has a session of its own."""
    code = "import os; print([os.isatty(n) for n in (0, 1, 2)], os.getsid(0) == os.getpid() == os.getpgrp())"
    with play(python(code)) as played:
        played.finish()
    assert played.piped["stdout"] == b"[False, False, False] True\n"


def test_standard_input_is_inherited(play):
    """A pipe or file given as input is read by the child itself."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"from the pipe\n")
    os.close(write_end)
    with play(python("print(input())"), stdin=read_end) as played:
        played.finish()
    assert played.piped["stdout"] == b"from the pipe\n"


def test_signals_that_are_ours_to_ignore_are_not_ignored_by_the_child(play):
    """The child starts with the signals as we found them: nothing ignored or blocked that was not before."""
    code = """
import signal
names = [s.name for s in signal.valid_signals() if isinstance(s, signal.Signals) and signal.getsignal(s) == signal.SIG_IGN]
print(sorted(names), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    with play(python(code)) as played:
        played.finish()
    assert played.piped["stdout"] == b"['SIGPIPE', 'SIGXFSZ'] set()\n"  # Python ignores these two in every process


def test_a_child_that_closes_its_output_lives_on(play):
    """The end of the output is not the end of the child."""
    code = "import os; os.write(1, b'bye'); os.close(1); os.close(2); input(); os._exit(4)"
    read_end, write_end = os.pipe()
    with play(python(code), stdin=read_end) as played:
        played.pump(lambda: played.piped["stdout"])
        assert played.order("descendants") == [played.hear("started")["pid"]]
        os.write(write_end, b"\n")
        assert played.finish()["code"] == 4
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("stream", ["pipe", "tty"])
def test_a_process_left_behind_does_not_hold_up_the_end(play, stream):
    """A background process that keeps the output open is not waited for, and what the child wrote is complete."""
    code = """
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
print("last line of the child", flush=True)
"""
    with play(python(code), stdout=stream, stderr=stream) as played:
        assert played.finish()["code"] == 0
        closed = played.hear("closed")
        os.killpg(played.hear("started")["pid"], signal.SIGKILL)
    assert closed["seconds"] < 1.5
    assert b"last line of the child\n" in played.log("stdout")


def test_a_chatterbox_left_behind_does_not_hold_up_the_end(play):
    """A background process that prints for ever is cut off after a bounded time."""
    code = """
import os, sys
if os.fork() == 0:
    while True:
        os.write(1, b"y\\n" * 1000)
"""
    with play(python(code)) as played:
        played.hear("over")
        assert played.hear("closed")["seconds"] < 7
        assert played.hear("closed")["threads"] == 1


def test_ending_reaches_those_in_other_sessions(play):
    """Ranks in sessions of their own end too, those that ignore SIGTERM by SIGKILL, and the child with them."""
    code = """
import os, signal, subprocess, sys, time
stubborn = "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'up %d\\\\n' % os.getpid()); time.sleep(99)"
subprocess.Popen([sys.executable, "-c", stubborn])
polite = "import os, time; os.write(1, b'up %d\\\\n' % os.getpid()); time.sleep(99)"
subprocess.Popen([sys.executable, "-c", polite]).wait()
time.sleep(99)
"""
    with play(python(code)) as played:
        played.pump(lambda: played.piped["stdout"].count(b"up ") == 2 and played.piped["stdout"].endswith(b"\n"))
        pids = [int(line.split()[1]) for line in played.piped["stdout"].splitlines()]
        assert set(played.order("descendants")) == {played.hear("started")["pid"], *pids}
        assert played.order("end", "0.3") == []
        assert played.finish()["signal"] == "SIGTERM"
        assert all(has_ended(pid) for pid in pids)


def test_ending_reaches_orphans_that_were_seen_before(play):
    """A process in a session of its own whose parent has died is remembered from an earlier look."""
    code = """
import os, subprocess, sys, time
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', %r], start_new_session=True).wait()"
orphan = "import os, time; print('orphan', os.getpid(), flush=True); time.sleep(99)"
parent = subprocess.Popen([sys.executable, "-c", middle % orphan])
input()
parent.kill(); parent.wait()
print("parent gone", flush=True)
time.sleep(99)
"""
    read_end, write_end = os.pipe()
    with play(python(code), stdin=read_end) as played:
        played.pump(lambda: played.piped["stdout"].endswith(b"\n"))
        orphan = int(played.piped["stdout"].split()[1])
        assert orphan in played.order("descendants")
        os.write(write_end, b"\n")
        played.pump(lambda: b"parent gone" in played.piped["stdout"])
        assert orphan in played.order("descendants")
        assert played.order("end", "5") == []
        played.finish()
        assert has_ended(orphan)
    os.close(read_end)
    os.close(write_end)


def test_ending_reaches_orphans_of_the_same_session(play):
    """A process that was never seen below the child, since its parent died at once, is known by its session."""
    code = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        print("orphan", os.getpid(), flush=True)
        time.sleep(99)
    os._exit(0)
os.wait()
time.sleep(99)
"""
    with play(python(code)) as played:
        played.pump(lambda: played.piped["stdout"].endswith(b"\n"))
        orphan = int(played.piped["stdout"].split()[1])
        played.pump(lambda: psutil.Process(orphan).ppid() != played.hear("started")["pid"])
        assert played.order("end", "5") == []
        played.finish()
        assert has_ended(orphan)


def test_a_second_request_cuts_the_grace_short(play):
    """Ctrl-C or SIGTERM while the end is awaited means: now."""
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print('up', flush=True)\nwhile True: time.sleep(0.05)"
    with play(python(code)) as played:
        played.pump(lambda: played.piped["stdout"])
        os.write(played._orders, b"end 60\n")
        played.pump(lambda: b"asked" in played.piped["stdout"])
        os.kill(played.process.pid, signal.SIGTERM)
        assert played.finish()["signal"] == "SIGKILL"
        assert "Terminate" in played.names()


def test_signals_to_the_supervisor(play):
    """SIGUSR1 is passed on; SIGINT and SIGTERM are told, and passed on only by the supervisor's decision."""
    code = """
import signal, time
for s in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
    signal.signal(s, lambda n, _: print(signal.Signals(n).name, flush=True))
print("up", flush=True)
while True: time.sleep(0.05)
"""
    with play(python(code)) as played:
        played.order("passive")
        played.pump(lambda: b"up" in played.piped["stdout"])
        os.kill(played.process.pid, signal.SIGTERM)
        os.kill(played.process.pid, signal.SIGINT)
        played.hear("Terminate")
        assert played.hear("Interrupt")["delivered"] is False
        os.kill(played.process.pid, signal.SIGUSR1)
        assert played.hear("Forwarded")["signal"] == "SIGUSR1"
        played.pump(lambda: b"SIGUSR1\n" in played.piped["stdout"])
        assert played.piped["stdout"] == b"up\nSIGUSR1\n"
        played.order("end", "0")
        played.finish()


def test_asking_to_stop_is_an_interrupt_to_the_whole_group(play):
    """The child and its workers get SIGINT, as with Ctrl-C."""
    code = """
import os, time
worker = os.fork()
try:
    print("up", flush=True)
    while True: time.sleep(0.05)
except KeyboardInterrupt:
    if worker:
        os.waitpid(worker, 0)
    print("interrupted", flush=True)
"""
    with play(python(code)) as played:
        played.pump(lambda: played.piped["stdout"].count(b"up") == 2)
        os.kill(played.process.pid, signal.SIGINT)
        assert played.finish()["code"] == 0
    assert played.piped["stdout"].count(b"interrupted") == 2


def test_a_reader_that_goes_away_does_not_end_the_run(play):
    """`holdfast run ... | head`: the rest is recorded although nobody reads it."""
    code = "print('first', flush=True); input(); print('x' * 200000, flush=True); print('last')"
    read_end, write_end = os.pipe()
    with play(python(code), stdin=read_end) as played:
        played.pump(lambda: played.piped["stdout"])
        os.close(played._pipes.pop("stdout"))
        os.write(write_end, b"\n")
        assert played.finish()["code"] == 0
    assert played.log("stdout").endswith(b"\nlast\n")
    os.close(read_end)
    os.close(write_end)


def test_a_full_pipe_is_not_a_hang(play):
    """A reader that does not read holds up the child, and that can be told from a child that has nothing to say."""
    code = "import os\nfor _ in range(40): os.write(1, b'z' * 65536)\nprint('end')"
    with play(python(code)) as played:
        deadline = time.monotonic() + 20
        while not played.order("blocked", reading=()):
            assert time.monotonic() < deadline
        assert played.order("quiet", reading=()) > 0.2
        assert played.finish()["code"] == 0
    assert played.piped["stdout"] == b"z" * (40 * 65536) + b"end\n"


def test_quiet_since_the_last_byte(play):
    """The time without output starts anew with each byte, and does not count what was spent suspended."""
    read_end, write_end = os.pipe()
    with play(python("print('a', flush=True); input(); print('b', flush=True); input()"), stdin=read_end) as played:
        played.pump(lambda: played.piped["stdout"] == b"a\n")
        time.sleep(0.3)
        assert played.order("quiet") >= 0.3
        os.write(write_end, b"\n")
        played.pump(lambda: played.piped["stdout"] == b"a\nb\n")
        assert played.order("quiet") < 0.3
        played.order("suspend")
        pids = played.order("descendants")
        played.pump(lambda: {psutil.Process(pid).status() for pid in pids} == {"stopped"})
        time.sleep(0.3)
        played.order("resume")
        assert played.order("quiet") < 0.3
        os.write(write_end, b"\n")
        assert played.finish()["code"] == 0
    os.close(read_end)
    os.close(write_end)


def test_other_children_of_the_supervisor_keep_their_status(play):
    """Waiting for the child reaps nobody else's process, and leaves no zombie."""
    read_end, write_end = os.pipe()
    with play(python("input(); raise SystemExit(2)"), stdin=read_end) as played:
        assert played.order("other_child") == 5
        os.write(write_end, b"\n")
        assert played.hear("Exited")["code"] == 2
        played.finish()
    os.close(read_end)
    os.close(write_end)


def test_waiting_costs_nothing(play):
    """A second in which nothing happens takes next to no processor time."""
    read_end, write_end = os.pipe()
    with play(python("print('up', flush=True); input()"), stdin=read_end) as played:
        played.pump(lambda: played.piped["stdout"])
        assert played.order("idle") < 20
        os.write(write_end, b"\n")
        played.finish()
    os.close(read_end)
    os.close(write_end)


def test_one_supervisor_starts_again_and_again(play):
    """After each life all threads are gone, and the next one records anew."""
    with play(python("import os; print('life', os.getpid()); input()"), stdin=(pipe := os.pipe())[0]) as played:
        for _ in range(3):
            played.order("again")
            os.write(pipe[1], b"\n")
            played.pump(lambda: "closed" in played.names())
            assert played.told[played.names().index("closed")]["threads"] == 1
            played.told = [
                fact for fact in played.told if fact["what"] == "started" and fact["pid"] != first_pid(played)
            ]
            played.hear("started")
        os.write(pipe[1], b"\n")
        played.finish()
    assert played.piped["stdout"].count(b"life") == 4
    assert played.log("stdout").count(b"life") == 1
    for end in pipe:
        os.close(end)


def first_pid(played):
    return next(fact["pid"] for fact in played.told if fact["what"] == "started")


def test_one_file_for_both_streams(play, tmp_path):
    """`> train.log 2>&1`: nothing overwrites anything, and lines stay whole."""
    code = "import os\nfor n in range(200): os.write(1, b'out %d\\n' % n); os.write(2, b'err %d\\n' % n)"
    with (
        (tmp_path / "train.log").open("wb") as file,
        play(python(code), stdout=file.fileno(), stderr=file.fileno()) as played,
    ):
        played.finish()
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("out")] == [f"out {n}" for n in range(200)]
    assert [line for line in lines if line.startswith("err")] == [f"err {n}" for n in range(200)]
    assert len(lines) == 400


def test_what_we_were_told_to_ignore_stays_ignored(play):
    """Under nohup, SIGHUP is nothing, for the supervisor and for the child."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True); signal.pause()"
    with play(python(code), launcher=lambda argv: ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *argv]) as played:
        played.pump(lambda: played.piped["stdout"])
        os.kill(played.process.pid, signal.SIGHUP)
        os.kill(played.process.pid, signal.SIGTERM)
        played.hear("Terminate")
        played.order("end", "5")
        played.finish()
    assert played.piped["stdout"] == b"True\n"
    assert "Hangup" not in played.names()


def test_last_words(play):
    """The end of both streams as a person would have seen it."""
    code = r"""
import sys
print("\x1b[32mepoch 1\x1b[0m")
sys.stderr.write("\r 10%|#    |\r100%|#####|\n")
raise ValueError("the cause")
"""
    with play(python(code)) as played:
        played.finish()
        closed = played.hear("closed")
    assert closed["stdout"] == ["epoch 1"]
    assert closed["stderr"][0] == "100%|#####|"
    assert closed["stderr"][-1] == "ValueError: the cause"


@pytest.mark.parametrize(
    ("make", "command", "message", "next_step"),
    [
        (None, ["no-such-program"], "not on the PATH", "check the spelling"),
        (None, ["./missing.py"], "no such file", "check the spelling"),
        (
            ("train.py", "print()", 0o644),
            ["train.py", "--lr", "1"],
            "only searched for on the PATH",
            "python train.py --lr 1",
        ),
        (("train.py", "print()", 0o644), ["./train.py"], "not marked as executable", "python ./train.py"),
        (("train.sh", "echo", 0o644), ["./train.sh"], "not marked as executable", "bash ./train.sh"),
        (("odd", "#!/no/such/interpreter\n", 0o755), ["./odd"], "#!/no/such/interpreter", "specify the interpreter"),
        (("odd", "no first line", 0o755), ["./odd"], "neither a program", "specify the interpreter"),
        (("data", None, 0o755), ["./data"], "is a folder", "data/train.py"),
        (("data", None, 0o755), ["data"], "is a folder", "data/train.py"),
        (None, ["python train.py"], "as one word", "holdfast run -- python train.py"),
    ],
)
def test_a_command_that_cannot_start_says_what_to_type(tmp_path, make, command, message, next_step):
    """What happened, why, and what to do next; and nothing is left open."""
    if make is not None:
        path, content, mode = tmp_path / make[0], make[1], make[2]
        path.mkdir() if content is None else path.write_text(content)
        path.chmod(mode)
    descriptors = psutil.Process().num_fds()
    with Terminal() as terminal, pytest.raises(CommandNotRunnable) as caught:
        ChildProcess.start(
            command,
            cwd=tmp_path,
            env=os.environ,
            stdout_log=tmp_path / "stdout.log",
            stderr_log=tmp_path / "stderr.log",
            terminal=terminal,
        )
    assert message in caught.value.what
    assert next_step in caught.value.next_step
    assert psutil.Process().num_fds() == descriptors


def test_a_folder_that_does_not_exist(tmp_path):
    """The folder to start in is named, not the command."""
    with Terminal() as terminal, pytest.raises(CommandNotRunnable, match="no such folder"):
        ChildProcess.start(
            [sys.executable],
            cwd=Path("/no/such/folder"),
            env=os.environ,
            stdout_log=tmp_path / "stdout.log",
            stderr_log=tmp_path / "stderr.log",
            terminal=terminal,
        )


def test_the_supervisors_own_signal_handlers_come_back():
    """After the run the process is as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)}
    with Terminal():
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


def test_between_two_attempts_the_user_is_heard():
    """While no child runs, a request to stop is told as well."""
    with Terminal() as terminal:
        os.kill(os.getpid(), signal.SIGTERM)
        assert type(terminal.wait(5)).__name__ == "Terminate"
        assert terminal.wait(0) is None
