"""The child at the user's terminal. The test is the user: it types, and waits for what the screen shows."""

import hashlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from playing import Played, modes, python

LINES = "import sys\nfor line in sys.stdin: print('got', repr(line), flush=True)"


@pytest.fixture
def play(tmp_path):
    return lambda command, **options: Played(tmp_path, command, **options)


@pytest.mark.parametrize(
    ("stdin", "stdout", "stderr"),
    [
        ("tty", "tty", "tty"),
        ("tty", "pipe", "tty"),
        ("tty", "tty", "pipe"),
        ("null", "tty", "tty"),
        ("null", "pipe", "tty"),
    ],
)
def test_each_stream_is_a_terminal_exactly_if_it_was_one(play, stdin, stdout, stderr):
    """Any mix of terminals, pipes and files is the same for the child, and it has a controlling terminal."""
    code = """
import os
tty = os.open("/dev/tty", os.O_RDWR)
os.write(2, repr(([os.isatty(n) for n in (0, 1, 2)], os.tcgetpgrp(tty) == os.getpid(), os.environ["TERM"])).encode() + b"!")
"""
    with (
        Path(os.devnull).open() as null,
        play(
            ["env", "TERM=odd-term", *python(code)],
            stdin="tty" if stdin == "tty" else null.fileno(),
            stdout=stdout,
            stderr=stderr,
        ) as played,
    ):
        assert played.finish()["code"] == 0
    expected = repr(([stdin == "tty", stdout == "tty", stderr == "tty"], True, "odd-term")).encode() + b"!"
    assert played.log("stderr") == expected
    assert (played.screen if stderr == "tty" else played.piped["stderr"]) == expected


def test_bytes_pass_unchanged_and_the_users_terminal_processes_them_once(play):
    """Carriage returns, colours and bare line feeds: the record has them as written, the screen as a terminal shows them."""
    written = b"\x1b[31mred\x1b[0m\r\n10%\r20%\nplain\n\x00\xff\t."
    with play(python(f"import os; os.write(1, {written!r})")) as played:
        played.finish()
    assert played.log("stdout") == written
    assert played.screen == written.replace(b"\n", b"\r\n")


def test_much_output_passes_unchanged(play):
    """Byte for byte through two terminals."""
    code = """
import hashlib, os
digest = hashlib.sha256()
for n in range(1600):
    block = (b"%06d " % n + bytes(range(32, 127)) * 700)[:65536]
    digest.update(block)
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
os.write(2, b"\\n" + digest.hexdigest().encode())
"""
    with play(python(code), stderr="pipe") as played:
        played.finish()
    assert len(played.screen) == 1600 * 65536
    assert hashlib.sha256(played.screen).hexdigest().encode() == played.piped["stderr"].strip()


def test_a_prompt(play):
    """input() asks, what is typed is echoed once and reaches the program, and the echo is not part of the record."""
    with play(python("print('hello', input('name? '))")) as played:
        played.see("name? ")
        played.type("bob\r")
        assert played.finish()["code"] == 0
    assert played.screen == b"name? bob\r\nhello bob\r\n"
    assert played.log("stdout") == b"hello bob\n"


def test_a_prompt_with_line_editing(play):
    """readline takes the terminal over, and its keys work."""
    with play(python("import readline; print('hello', input('name? '))")) as played:
        played.see("name? ")
        played.type("ob\x01b\r")  # Ctrl-A goes to the beginning of the line
        played.see("hello bob")
        assert played.finish()["code"] == 0


def test_a_password(play):
    """getpass reads from /dev/tty without an echo."""
    with play(python("import getpass; print('got', len(getpass.getpass('secret: ')))")) as played:
        played.see("secret: ")
        played.type("hunter2\r")
        played.see("got 7")
        played.finish()
    assert b"hunter2" not in played.screen
    assert b"hunter2" not in played.log("stdout") + played.log("stderr")


def test_the_debugger(play):
    """A breakpoint can be used as ever."""
    with play(python("x = 41\nbreakpoint()\nprint('x is', x)")) as played:
        played.see("(Pdb) ")
        played.type("x + 1\r")
        played.see("42")
        played.type("c\r")
        played.see("x is 41")
        assert played.finish()["code"] == 0


def test_end_of_input(play):
    """Ctrl-D ends the input, and only that."""
    with play(python(LINES + "\nprint('the end')")) as played:
        played.type("one\r")
        played.see("got 'one\\n'")
        played.type("\x04")
        played.see("the end")
        assert played.finish()["code"] == 0


def test_ctrl_c(play):
    """The child's terminal interrupts the child, once, and the supervisor is told before it hears of the exit."""
    code = """
import time
try:
    print("up", flush=True)
    while True: time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True); raise SystemExit(5)
"""
    with play(python(code)) as played:
        played.see("up")
        played.type("\x03")
        assert played.finish()["code"] == 5
    assert played.screen.count(b"interrupted") == 1
    assert played.names().index("Interrupt") < played.names().index("Exited")
    assert played.hear("Interrupt")["delivered"] is True


def test_ctrl_c_is_data_for_a_full_screen_program(play):
    """Where the child's terminal makes no signals, we make none either."""
    code = "import os, tty; tty.setraw(0); os.write(1, b'raw'); os.write(1, repr(os.read(0, 1)).encode() + b';'); os.write(1, repr(os.read(0, 1)).encode() + b';')"
    with play(python(code)) as played:
        played.see("raw")
        played.type("\x03")
        played.see(repr(b"\x03") + ";")
        played.type("\x1a")
        played.see(repr(b"\x1a") + ";")
        assert played.finish()["code"] == 0
    assert not {"Interrupt", "Suspend"} & set(played.names())


def test_ctrl_backslash(play):
    """SIGQUIT from the child's terminal."""
    with play(python("import time; print('up', flush=True); time.sleep(99)")) as played:
        played.see("up")
        played.type("\x1c")
        assert played.finish()["signal"] == "SIGQUIT"


def test_ctrl_s_pauses_and_ctrl_q_goes_on(play):
    """Output is held back, which is no hang, and nothing of it is lost."""
    code = """
import os
print("up", flush=True); input()
for n in range(100): os.write(1, b"%04d" % n * 1000)
print("end", flush=True)
"""
    with play(python(code)) as played:
        played.see("up")
        played.type("\x13\r")
        deadline = time.monotonic() + 20
        while not played.order("blocked"):
            assert time.monotonic() < deadline
        assert b"end" not in played.screen
        played.type("\x11")
        played.see("end")
        assert played.finish()["code"] == 0
    assert b"".join(b"%04d" % n * 1000 for n in range(100)) in played.screen


def test_a_terminal_that_takes_nothing_does_not_keep_the_attempt_from_ending(play):
    """A terminal that nobody reads holds up the child, not its recording nor its end."""
    code = "import os\nfor n in range(3000): os.write(1, b'%06d' % n * 100)"
    with play(python(code)) as played:
        deadline = time.monotonic() + 20
        while not played.order("blocked", reading=()):
            assert time.monotonic() < deadline
        recorded = len(played.log("stdout"))
        assert recorded > 0
        played.order("end", "5", reading=())
        assert played.hear("closed", reading=())["threads"] == 1
        assert len(played.log("stdout")) >= recorded


def test_the_window(play):
    """Its size is the child's from the start, and when it changes the child is told, with the new size in place."""
    code = """
import os, signal, time
def changed(*_): print("now", *os.get_terminal_size(1), *os.get_terminal_size(2), *os.get_terminal_size(0), flush=True)
signal.signal(signal.SIGWINCH, changed)
print("first", *os.get_terminal_size(), flush=True)
while True: time.sleep(0.05)
"""
    with play(python(code), window=(33, 101)) as played:
        played.see("first 101 33")
        played.resize(44, 122)
        played.see("now 122 44 122 44 122 44")
        played.order("end", "5")
        played.finish()


def test_the_window_when_input_is_no_terminal(play):
    """Then the terminal of stdout is the controlling one."""
    code = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
print("up", flush=True)
while True: time.sleep(0.05)
"""
    with Path(os.devnull).open() as null, play(python(code), stdin=null.fileno()) as played:
        played.see("up")
        played.resize(50, 60)
        played.see("now 60 50")
        os.kill(played.process.pid, signal.SIGINT)  # as Ctrl-C does where the user's terminal is left as it is
        played.finish()
        assert played.hear("Interrupt")["delivered"] is False


@pytest.mark.parametrize("how", ["exit", "exception"])
def test_the_users_terminal_is_given_back(play, how):
    """While the child runs every key is its own; afterwards the terminal is as it was, also when the supervisor fails."""
    with play(python("print('up', flush=True); input()")) as played:
        before = modes(played.keyboard)
        played.see("up")
        assert modes(played.keyboard) != before
        assert modes(played.keyboard)[1] == before[1], "the output side is left alone"
        if how == "exit":
            played.type("\r")
            played.finish()
        else:
            os.write(played._orders, b"raise\n")
            played.see("a bug of the supervisor")
            played.process.wait(20)
        assert modes(played.keyboard) == before


def test_the_terminal_goes_away(play):
    """The run goes on and is recorded; a child that asks is told that nobody will answer."""
    code = """
import time
print("up", flush=True)
try: input()
except EOFError: pass
print("and on", flush=True)
"""
    with play(python(code)) as played:
        played.see("up")
        os.close(played.keyboard)
        played.hear("Hangup", reading=())
        played.hear("over", reading=())
        assert played.hear("Exited", reading=())["code"] == 0
    assert played.log("stdout") == b"up\nand on\n"


def test_a_hangup_by_somebody_else(play):
    """SIGHUP while the terminal is there: told, and the child's input goes on."""
    with play(python(LINES)) as played:
        played.type("a\r")
        played.see("got 'a\\n'")
        os.kill(played.process.pid, signal.SIGHUP)
        played.hear("Hangup")
        played.type("b\r")
        played.see("got 'b\\n'")
        played.type("\x04")
        assert played.finish()["code"] == 0


def test_a_process_left_behind_with_the_terminal(play):
    """What it and the child printed before the end is complete, although the terminal stays open."""
    code = """
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
os.write(1, b"n" * 30000 + b"!")
os._exit(6)
"""
    with play(python(code)) as played:
        assert played.finish()["code"] == 6
        os.killpg(played.hear("started")["pid"], signal.SIGKILL)
    assert played.screen == played.log("stdout") == b"n" * 30000 + b"!"


def test_two_streams_on_one_screen(play):
    """Both are shown complete, each in its own record and in its own order."""
    code = """
import os
for n in range(300):
    os.write(1, b"out %d\\n" % n); os.write(2, b"\\rerr %d\\n" % n)
"""
    with play(python(code)) as played:
        played.finish()
    out = [b"out %d\n" % n for n in range(300)]
    err = [b"\rerr %d\n" % n for n in range(300)]
    assert played.log("stdout") == b"".join(out)
    assert played.log("stderr") == b"".join(err)
    shown = played.screen.replace(b"\r\n", b"\n")
    assert len(shown) == len(b"".join(out + err))
    assert [shown.index(line) for line in out] == sorted(shown.index(line) for line in out)
    assert [shown.index(line) for line in err] == sorted(shown.index(line) for line in err)


def test_ctrl_z_where_nobody_could_continue_us(play):
    """Without a shell above, the kernel lets nobody stop by Ctrl-Z: everything goes on at once."""
    with play(python(LINES)) as played:
        played.type("a\r")
        played.see("got 'a\\n'")
        played.type("\x1a")
        assert played.hear("Continued")["seconds"] < 5
        played.type("b\r\x04")
        played.see("got 'b\\n'")
        assert played.finish()["code"] == 0


WITH_WORKER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "print('worker ready', flush=True); input()"], stdin=subprocess.PIPE, start_new_session=True)
for line in sys.stdin: print("got", repr(line), flush=True)
worker.communicate(b"\\n")
"""


@pytest.fixture
def shell(tmp_path):
    """An interactive shell with the supervisor as a job: `python` goes in a file, since a terminal's lines are short."""
    if shutil.which("bash") is None:
        pytest.skip("needs a shell with job control")

    def start(code, after=""):
        (tmp_path / "train.py").write_text(code)
        job = []
        played = Played(
            tmp_path,
            [*python("")[:2], str(tmp_path / "train.py")],
            launcher=lambda argv: (
                job.append(shlex.join(argv))
                or ["env", "PS1=ready> ", "bash", "--norc", "--noprofile", "--noediting", "-i"]
            ),
        )
        played.see("ready> ")
        played.type(f"{job[0]}{after}\r")
        return played

    return start


def leave(played):
    played.hear("over")
    played.type("\rexit\r")
    assert played.finish()["code"] == 0


def status(pids):
    return {psutil.Process(pid).status() for pid in pids}


@pytest.mark.parametrize("how", ["key", "signal"])
def test_suspend_and_continue(shell, how):
    """All processes of the child stand still, the shell has its terminal back, and `fg` brings everything to life again."""
    with shell(WITH_WORKER) as played:
        played.see("worker ready")
        pids = played.order("descendants")
        assert len(pids) == 2
        if how == "key":
            played.type("\x1a")
        else:
            os.kill(played.hear("started")["own_pid"], signal.SIGTSTP)
        played.see("Stopped")
        played.see("ready> ", times=2)
        shells_modes = modes(played.keyboard)
        played.pump(lambda: status([*pids, played.hear("started")["own_pid"]]) == {"stopped"})
        played.type("echo in the $((40 + 2)) shell\r")
        played.see("in the 42 shell")
        time.sleep(0.2)  # the length of the pause is what is measured
        played.type("fg\r")
        assert played.hear("Continued")["seconds"] >= 0.2
        assert "stopped" not in status(pids)
        assert modes(played.keyboard) != shells_modes
        played.type("hello\r\x04")
        played.see("got 'hello\\n'")
        leave(played)


def test_a_background_job(shell):
    """It neither touches the terminal nor stops for it; brought to the foreground, it gets the keys."""
    with shell(WITH_WORKER, after=" &") as played:
        played.see("ready> ", times=2)
        own_pid = played.hear("started")["own_pid"]
        played.type("echo in the $((40 + 2)) shell\r")
        played.see("in the 42 shell")
        assert "stopped" not in status([own_pid])
        shells_modes = modes(played.keyboard)
        played.type("fg\r")
        played.pump(lambda: modes(played.keyboard) != shells_modes)
        played.type("hello\r")
        played.see("got 'hello\\n'")
        played.type("\x1a")
        played.see("Stopped")
        played.type("bg\r")
        played.hear("Continued")
        played.type("echo in the $((40 + 3)) shell\r")
        played.see("in the 43 shell")
        assert "stopped" not in status([own_pid, *played.order("descendants")])
        played.type("fg\r")
        played.pump(lambda: modes(played.keyboard) != shells_modes)
        played.type("again\r\x04")
        played.see("got 'again\\n'")
        leave(played)
    assert played.log("stdout").count(b"got") == 2


BARE_SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
os.waitpid(job, os.WUNTRACED)
os.tcsetpgrp(0, os.getpgrp())
print("the job stands still", flush=True)
input()
os.tcsetpgrp(0, job)
os.killpg(job, signal.SIGCONT)
os.waitpid(job, 0)
"""


def test_a_shell_that_does_not_tidy_up(play):
    """The terminal is given back before we stop, and not left to the shell to repair."""
    with play(python(LINES), launcher=lambda argv: [*python(BARE_SHELL), *argv]) as played:
        before = modes(played.keyboard)
        played.type("a\r")
        played.see("got 'a\\n'")
        assert modes(played.keyboard) != before
        played.type("\x1a")
        played.see("the job stands still")
        assert modes(played.keyboard) == before
        played.type("\r")
        played.hear("Continued")
        played.type("b\r\x04")
        played.see("got 'b\\n'")
        assert played.finish()["code"] == 0
