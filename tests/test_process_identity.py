"""Only a process that is proven to belong to an attempt is signalled or taken for it: a pid alone is nobody's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from running import HOLDFAST, command, environment, holdfast

from holdfast.probe.holdfast_probe import protocol
from holdfast.process import process_identity
from holdfast.process.descendants import Descendants
from holdfast.process.process_identity import ProcessIdentity, read_identity, send_signal
from holdfast.process.stack_dumps import StackReader
from holdfast.render.status import status_of
from holdfast.schema import events
from holdfast.schema.plan import Budget, Plan
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.plan_copy import write_plan
from holdfast.supervisor.orphan_cleanup import end_leftovers, find_unidentified

ENDS_AT_ONCE = [sys.executable, "-c", "pass"]


@contextlib.contextmanager
def sleeper(mark=None, words=("sleep", "1000"), *, wiped=False, session=True):
    """A process in a session of its own, marked as an attempt's where a folder is given; ended at last."""
    own = {name: value for name, value in os.environ.items() if name != protocol.ATTEMPT_DIR}
    env = {**own, protocol.ATTEMPT_DIR: str(mark)} if mark is not None else own
    process = subprocess.Popen(list(words), env={} if wiped else env, start_new_session=session, stdout=subprocess.PIPE)
    try:
        if not wiped:
            until(lambda: psutil.Process(process.pid).environ() or process.poll() is not None)  # only set late in exec
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition, patience=30.0):
    """Wait for what must happen; the bound is only there to fail instead of hanging."""
    deadline = time.monotonic() + patience
    while not (met := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return met


def abandoned(folder, *, pid, start="", pid_space="", at=None, attached=None, command=ENDS_AT_ONCE):
    """A run as a supervisor leaves it that was killed while its first attempt ran under this pid."""
    run = RunFolder(folder / "run")
    (run.path / "attempts" / "1").mkdir(parents=True)
    write_plan(run, Plan(cwd=str(folder), command=list(command), budget=Budget(attempts=1), grace_s=0.5))
    at = time.time() if at is None else at
    journal = JournalWriter(run.journal)
    journal.append(
        events.RunStarted(
            at=at, schema=events.SCHEMA, run="run", command=list(command), cwd=str(folder), holdfast="0", platform="",
            python="3", supervisor=1,
        )
    )  # fmt: skip
    journal.append(
        events.AttemptStarted(at=at, attempt=1, pid=pid, start=start, pid_space=pid_space, command=list(command))
    )
    journal.close()
    if attached is not None:
        said = events.ProbeAttached(
            at=at, schema=1, pid=attached, rank=0, python="3", executable=sys.executable, torch="2"
        )
        (run.path / "attempts" / "1" / "rank-0.jsonl").write_bytes(events.encode(said) + b"\n")
    return run


def remarks(run):
    return [f"{e.event.what}: {e.event.detail}" for e in replay(run) if isinstance(e.event, events.SupervisorNote)]


def test_resume_leaves_a_bystander_with_the_old_pid_alone(tmp_path):
    """After a reboot or a container's restart somebody else has the training's pid, and leads a session of that number."""
    with sleeper() as bystander:
        here = read_identity(bystander.pid)
        run = abandoned(tmp_path, pid=bystander.pid, start="1", pid_space="another boot/1", at=time.time() - 60)
        assert holdfast(tmp_path, "resume", "run").code == 0
        assert bystander.poll() is None
        assert not any(str(bystander.pid) in said for said in remarks(run))  # it is known to be another's
        assert here == read_identity(bystander.pid)


def test_resume_leaves_a_newcomer_with_a_reused_pid_alone(tmp_path):
    """Without a reboot pids come again too: the start time tells."""
    with sleeper() as newcomer:
        here = read_identity(newcomer.pid)
        abandoned(tmp_path, pid=newcomer.pid, start="1", pid_space=here.pid_space, at=time.time() - 60)
        assert holdfast(tmp_path, "resume", "run").code == 0
        assert newcomer.poll() is None


def test_resume_ends_the_real_leftover(tmp_path):
    """By its mark, or by the identity that the journal recorded, where a program wiped its environment."""
    with (
        sleeper(tmp_path / "run" / "attempts" / "1") as marked,
        sleeper(wiped=True) as recorded,
        sleeper(tmp_path / "other" / "attempts" / "1") as of_another_run,
    ):
        abandoned(tmp_path, **read_identity(recorded.pid)._asdict())
        assert holdfast(tmp_path, "resume", "run").code == 0
        assert (marked.wait(5), recorded.wait(5)) == (-signal.SIGTERM, -signal.SIGTERM)
        assert of_another_run.poll() is None


@pytest.mark.parametrize("wiped", [False, True])
def test_a_forged_journal_ends_no_bystander(tmp_path, wiped):
    """It names a living process of this user, to the start: one whose environment is whole, or that leads no session."""
    with sleeper(wiped=wiped, session=not wiped) as bystander:
        run = abandoned(tmp_path, **read_identity(bystander.pid)._asdict())
        assert holdfast(tmp_path, "resume", "run").code == 0
        assert bystander.poll() is None
        assert any(f"process {bystander.pid} may still be running" in said for said in remarks(run))


def test_a_forged_journal_ends_neither_init_nor_another_users_process(monkeypatch):
    """Of process 1, and of what another user runs, the record proves nothing."""
    assert not process_identity.is_plausible_training(psutil.Process(1))
    with sleeper(wiped=True) as ours:
        assert process_identity.is_plausible_training(psutil.Process(ours.pid))
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert not process_identity.is_plausible_training(psutil.Process(ours.pid))


@pytest.mark.parametrize(
    ("content", "lost"),
    [
        (b"", True),
        (b"a: training epoch 3" + b"\0" * 500, True),
        (b"lr=0.1" + b"\0" * 500, True),
        (b"\0" * 800, True),
        (b"HOME=/\0PATH=/bin\0", False),
        (b"X=\0", False),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the bytes of an environment are in /proc")
def test_an_environment_that_was_written_over_is_told_from_a_whole_one(tmp_path, monkeypatch, content, lost):
    """A title over it leaves text and zeros; what is whole is names and values to its end."""
    monkeypatch.setattr(process_identity, "PROC", tmp_path)
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "environ").write_bytes(content)
    assert process_identity._has_lost_environment(psutil.Process()) is lost


def test_a_training_in_another_namespace_is_spoken_of(tmp_path):
    """Begun in a container since this boot it may run on, unseen from here. After a reboot nothing can."""
    boot = process_identity.pid_space().partition("/")[0]
    if not sys.platform.startswith("linux"):
        pytest.skip("there are no PID namespaces here")
    run = abandoned(tmp_path, pid=2**22 + 1, start="1", pid_space=f"{boot}/1")
    done = holdfast(tmp_path, "resume", "run")
    assert done.code == 0
    assert [said for said in remarks(run) if "another PID namespace" in said]
    assert "another PID namespace" in done.stderr
    assert not ProcessIdentity(5, "1", "another boot/1").is_in_another_namespace()
    assert not ProcessIdentity(5, "1", process_identity.pid_space()).is_in_another_namespace()


def test_what_cannot_be_identified_is_left_alone_and_named(tmp_path):
    """A pid that a rank reported, of a process that is old enough and carries no mark."""
    with sleeper() as unknown:
        run = abandoned(tmp_path, pid=2**22 + 1, at=time.time() + 1, attached=unknown.pid)
        assert holdfast(tmp_path, "resume", "run").code == 0
        assert unknown.poll() is None
        assert (
            f"process {unknown.pid} may still be running: it could not be identified, so it was left alone"
            in remarks(run)
        )


def test_a_newer_process_than_its_mention_is_not_even_named():
    """It started after the record spoke of its pid: another process."""
    with sleeper() as newer:
        nobody = ProcessIdentity(2**22 + 1, "", "")
        assert find_unidentified({newer.pid: time.time() - 60}, nobody) == []
        assert find_unidentified({newer.pid: time.time()}, nobody) == [newer.pid]
        assert find_unidentified({newer.pid: time.time()}, ProcessIdentity(1, "1", "another boot/1")) == []


def test_a_command_without_a_probe_is_ended_by_resume(tmp_path):
    """A SIGKILLed supervisor leaves it running. Here even before the journal had its pid: only the mark tells."""
    once = "test -e again && exit 0; touch again; echo up; exec sleep 1000"
    supervisor = subprocess.Popen(
        command(tmp_path, "sh", "-c", once), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout.readline() == "up\n"
    run = RunFolder(tmp_path / "run")
    pid = until(lambda: next((e.event.pid for e in replay(run) if isinstance(e.event, events.AttemptStarted)), None))
    supervisor.kill()
    supervisor.communicate()
    left = psutil.Process(pid)
    run.journal.write_bytes(run.journal.read_bytes().split(b"\n")[0] + b"\n")
    assert left.is_running()
    assert holdfast(tmp_path, "resume", "run").code == 0
    assert not process_identity.is_alive(left)


def test_status_does_not_take_a_stranger_for_the_training(tmp_path):
    with sleeper() as stranger:
        here = read_identity(stranger.pid)
        run = abandoned(tmp_path, pid=stranger.pid, start="1", pid_space=here.pid_space)
        assert status_of(run)["now"]["alive"] is False


def test_status_knows_the_living_training(tmp_path):
    """By the recorded identity, and a rank below it by its parent."""
    below = [
        sys.executable,
        "-c",
        "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()",
    ]
    with sleeper(words=below) as training:
        rank = int(training.stdout.readline())
        run = abandoned(tmp_path, **read_identity(training.pid)._asdict(), attached=rank)
        assert status_of(run)["now"]["alive"] is True
        psutil.Process(rank).kill()


def test_a_shell_that_the_run_started_may_resume_it(tmp_path):
    """This process and those above it are never ended, whatever they carry."""
    script = "import sys; from pathlib import Path; from holdfast.process.process_identity import AttemptProcesses; print([p.pid for p in AttemptProcesses([Path(sys.argv[1])]).find()])"
    words = ["sh", "-c", '"$@"; :', "sh", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(
        words, env={**os.environ, protocol.ATTEMPT_DIR: str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_the_same_path_in_another_folder_tree_is_another_attempt(tmp_path, monkeypatch):
    """In another container the path may name another folder: what counts is the folder that the process itself sees."""
    (tmp_path / "attempt").mkdir()
    with sleeper(tmp_path / "attempt") as marked:
        process = psutil.Process(marked.pid)
        assert process_identity.has_attempt_mark(process, [tmp_path / "attempt"])
        root = tmp_path / "proc" / str(marked.pid) / "root"
        (root / str(tmp_path / "attempt").lstrip("/")).mkdir(parents=True)
        monkeypatch.setattr(process_identity, "PROC", tmp_path / "proc")
        assert not process_identity.has_attempt_mark(process, [tmp_path / "attempt"])


def test_a_signal_never_reaches_a_successor(monkeypatch):
    """Between the proof and the signal the process ends and its pid is given again."""
    with sleeper() as successor:
        before = psutil.Process(successor.pid)
        before._ident = (before.pid, 1.0)
        before._create_time = 1.0
        assert send_signal(before, signal.SIGKILL) is False
        monkeypatch.delattr(os, "pidfd_open", raising=False)  # as on macOS
        before._gone = False
        assert send_signal(before, signal.SIGKILL) is False
        assert successor.poll() is None


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGKILL, signal.SIGTERM])
def test_a_file_cannot_have_a_process_ended_by_asking_for_its_stacks(tmp_path, number):
    """Signal and pid come from what the training wrote: a process without a handler is not sent what would end it."""
    if number == signal.SIGUSR2 and not sys.platform.startswith("linux"):
        pytest.skip("only /proc tells which signals a process handles")
    with sleeper() as innocent:
        reader = StackReader(lambda pid: tmp_path / str(pid))
        assert reader.request([(psutil.Process(innocent.pid), number)], 0.0) is False
        assert innocent.poll() is None


@pytest.mark.parametrize("is_marked", [True, False])
def test_an_orphaned_session_counts_only_where_its_member_is_marked(tmp_path, is_marked):
    """The leader died between two looks, and so did all that was known of the session: its number may be another's by now."""
    with sleeper(tmp_path if is_marked else None, ["sh", "-c", "sleep 1000 >/dev/null & echo $!; wait"]) as leader:
        offspring = Descendants(leader.pid, tmp_path)
        member = psutil.Process(int(leader.stdout.readline()))
        until(lambda: member.name() == "sleep" and member.environ())
        leader.kill()
        leader.wait()
        offspring._known.pop(member.pid, None)
        assert (member in offspring.list_alive()) is is_marked
        member.kill()


def test_end_leftovers_kills_what_does_not_listen(tmp_path):
    """With its whole session, and what ignores SIGTERM too."""
    deaf = ["sh", "-c", "trap '' TERM; (trap '' TERM; sleep 1000) & echo up; wait"]
    with sleeper(tmp_path, deaf) as process:
        process.stdout.readline()
        below = psutil.Process(process.pid).children(recursive=True)
        assert end_leftovers([tmp_path], [], 0.1) == []
        assert process.wait(5) == -signal.SIGKILL
        assert below
        assert not any(process_identity.is_alive(each) for each in below)


def test_a_real_restart_in_another_pid_namespace(tmp_path):
    """Two PID namespaces stand for two boots: the pid of the first run's training belongs to a bystander in the second."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to make a PID namespace here")
    (tmp_path / "train.sh").write_text("test -e again && exit 0; touch again; exec sleep 1000\n")
    first = f"""'{HOLDFAST}' run --dir run --max-attempts 1 -- sh train.sh & while ! test -e again || ! grep -qs attempt-started run/journal.jsonl; do sleep 0.05; done; kill -9 $!"""
    subprocess.run(
        [*alone, "sh", "-c", first], cwd=tmp_path, env=environment(), check=False, capture_output=True, timeout=60
    )
    run = RunFolder(tmp_path / "run")
    pid = next(e.event.pid for e in replay(run) if isinstance(e.event, events.AttemptStarted))
    second = f"""
n=0; while test $n -lt {pid + 5}; do n=$((n+1)); sleep 1000 & test $! -ge {pid} && break; done; bystander=$!
test $bystander -eq {pid} || exit 99
'{HOLDFAST}' resume run; echo "resume $?"; kill -0 $bystander && echo alive"""
    done = subprocess.run(
        [*alone, "sh", "-c", second],
        cwd=tmp_path,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-2:] == ["resume 0", "alive"], (done.returncode, done.stdout, done.stderr)
