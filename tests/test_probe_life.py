"""How the probe comes to life in a process, and what survives that process's end."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probe_harness import CHILD, attempt, collect, environment, run, script
from test_probe_steps import tiny

from holdfast.probe.holdfast_probe import heartbeat
from holdfast.schema import events

TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        loss().backward()
        optimizer.step()
"""


def test_the_other_sitecustomize_still_runs(tmp_path):
    """A sitecustomize of the user's own runs as the real one, and the path looks as it does without us."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = __name__, __file__\n")
    probed = run(
        tmp_path,
        """
        import sys, sitecustomize
        print(sys.theirs)
        print(sitecustomize.__file__)
        print([entry for entry in sys.path if "holdfast/probe" in entry])
        """,
        PYTHONPATH=f"{CHILD}{os.pathsep}{theirs}",
    )
    lines = probed.out.splitlines()
    assert lines[0] == str(("sitecustomize", str(theirs / "sitecustomize.py")))
    assert lines[1:] == [str(theirs / "sitecustomize.py"), "[]"]
    assert isinstance(probed.by_file["interpreters.jsonl"][0], events.Interpreter)


def test_without_an_attempt_or_in_isolation_it_is_inert(tmp_path):
    """No HOLDFAST_ATTEMPT_DIR, or -I: nothing is loaded, nothing is written."""
    check = "import sys; print([name for name in sys.modules if 'holdfast' in name])"
    with attempt(tmp_path / "attempt") as folder:
        given = environment(folder)
        nowhere = {name: value for name, value in given.items() if name != "HOLDFAST_ATTEMPT_DIR"}
        for flags, variables in ((["-I"], given), ([], nowhere)):
            done = subprocess.run(
                [sys.executable, *flags, "-c", check], env=variables, capture_output=True, text=True, check=True
            )
            assert done.stdout.strip() == "[]"
        assert not list(folder.glob("*.jsonl"))


def test_a_process_without_torch_pays_little(tmp_path):
    """A plain Python under the probe loads a handful of small modules, none of them dear."""
    probed = run(
        tmp_path,
        "import sys; print([name for name in ('json', 'typing', 'torch', 'holdfast_probe.probe') if name in sys.modules])",
    )
    assert probed.out.strip() == "[]"
    assert probed.files == []
    attached = probed.by_file["interpreters.jsonl"][0]
    assert attached.executable == sys.executable


def test_a_process_that_only_imports_torch_does_not_claim_a_rank(tmp_path):
    """Importing torch is told in interpreters.jsonl; a rank's file begins with the first backward, step or fetch."""
    probed = run(tmp_path, "import torch; torch.ones(2).sum()")
    assert [type(event).__name__ for event in probed.by_file["interpreters.jsonl"]] == ["Interpreter", "TorchImported"]
    assert probed.files == []


def test_after_import_is_exact_about_odd_imports(tmp_path):
    """The hook fires once after the module ran, also at once for one that is there; an import that fails is waited for
    again; the finder leaves when nothing is left; the module's loader is the one it would have had."""
    (tmp_path / "fragile.py").write_text(
        "import sys\nif not hasattr(sys, 'ready'): raise ImportError('not yet')\nvalue = 7\n"
    )
    probed = run(
        tmp_path,
        """
        import sys
        from holdfast_probe.import_hooks import after_import
        seen = []
        after_import("fragile", lambda module: seen.append(module.value))
        after_import("sys", lambda module: seen.append("at once"))
        after_import("fragile", lambda module: 1 / 0)
        try:
            import fragile
        except ImportError:
            sys.ready = True
        import fragile
        import torch
        print(seen, type(fragile.__loader__).__name__, "exec_module" in vars(fragile.__loader__))
        """,
        PYTHONPATH=f"{CHILD}",
        HOLDFAST_KEEP="1",
    )
    assert probed.out.split("\n")[0] == "['at once', 7] SourceFileLoader False"


def test_os_exit_loses_no_line_of_the_first_steps(tmp_path):
    """Every line of the first hundred steps is in the file before the next step begins: os._exit loses none."""
    probed = run(tmp_path, tiny(TRAIN + "train(7)\nimport os\nos._exit(3)\n"), fails=True)
    assert probed.code == 3
    assert probed.steps == [1, 2, 3, 4, 5, 6, 7]
    assert probed.beats[0].step == 7
    assert probed.of(events.ProcessExiting) == []


def test_after_a_thousand_steps_windows_and_odd_ones(tmp_path):
    """The first thousand steps have lines, the rest stand in windows that leave no step out; a loss that stops being
    finite, or becomes exactly zero, gets a line of its own at once."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(1, 3001):
            value = loss() * 0 + 1
            if step == 1500:
                value = value + float("nan")
            if step == 2000:
                value = value - 1
            value.backward()
            optimizer.step()
        """),
    )
    lines = probed.of(events.Step)
    assert [line.step for line in lines[:1000]] == list(range(1, 1001))
    assert [(line.step, line.loss) for line in lines[1000:]] == [(1500, "nan"), (1501, 1.0), (2000, 0.0)]
    windows = probed.of(events.Steps)
    covered = [step for window in windows for step in range(window.first, window.last + 1)]
    assert sorted(covered + [line.step for line in lines]) == list(range(1, 3001))
    assert all(window.loss.n == window.last - window.first + 1 for window in windows)
    assert probed.beats[0].step == 3000


def test_a_million_steps_stay_small():
    """Steps so slow that each window is as short as it may be, with all that a line can hold, and the whole allowance of
    the other events: under 40 MB."""
    from holdfast.probe.holdfast_probe import event_writer, step_log

    size = 0

    def emit(event, **fields):
        nonlocal size
        size += len(event_writer.encode_event(event, fields))

    def emit_all(event, several):
        for fields in several:
            emit(event, **fields)

    recorder = step_log.StepLog(emit, emit_all, lambda: [0.00123456789] * 3)
    for number in range(100_000):
        record = step_log.Record()
        record.number, record.seconds, record.data_wait = 900_001 + number, 60.0712345, 0.0123456
        record.backwards, record.samples, record.batch, record.lr = 1, 32, f"{number:016x}", [0.00123456789] * 3
        record.add_loss(0.123456789 + number)
        record.add_norm(12.3456789 + number)
        for part in ("box", "cls", "dfl"):
            record.add_part(part, 0.123456789 + number)
        recorder.add(record, 60.0 * number)
    first_tenth, windows_of_the_rest = size, 8000 * 2.31  # a window for each eight-thousandth: the logarithm of ten
    line = len(event_writer.encode_event("steps", step_log.window_line([record] * 125, [0.00123456789] * 3)))
    others = event_writer.ALLOWANCE_BYTES + 1_000_000 * event_writer.ALLOWANCE_BYTES_PER_STEP
    assert first_tenth + line * windows_of_the_rest + others < 40e6


def test_a_full_disk_stops_the_writing_and_not_the_training(tmp_path):
    """With no room left the training goes on, the heartbeat stays exact, and once there is room a note says what is lost."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import resource, signal, sys
writer = sys.modules["holdfast_probe.event_writer"]
writer.RETRY_SECONDS = 0.0
train(3)
size = sys.modules["holdfast_probe.probe"]._probe.writer
import os
used = os.stat(size._path).st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (used + 50, resource.RLIM_INFINITY))
train(4)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
train(3)
"""
        ),
    )
    assert probed.beats[0].step == 10
    assert probed.steps == [1, 2, 3, 8, 9, 10]
    assert probed.torn == 1
    assert "events were lost: they could not be written" in probed.notes


def test_an_unwritable_folder_leaves_the_heartbeat(tmp_path):
    """Where the folder is gone before the first step, nothing is written and the training does not notice."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + "import os\nfolder = os.environ['HOLDFAST_ATTEMPT_DIR']\nos.rename(folder, folder + '2')\ntrain(3)\nos.rename(folder + '2', folder)\nprint('done')\n"
        ),
        HOLDFAST_HEARTBEAT=str(tmp_path / "attempt" / "heartbeat"),
    )
    assert probed.out == "done\n"
    assert probed.files == []


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_cut_heartbeat_does_no_harm(tmp_path, in_memory):
    """A heartbeat file that is cut while the training runs (were it mapped, that would be a SIGBUS): it goes on."""
    probed = run(
        tmp_path,
        in_memory=in_memory,
        text=tiny(
            TRAIN + "import os\ntrain(2)\nos.truncate(os.environ['HOLDFAST_HEARTBEAT'], 0)\ntrain(2)\nprint('done')\n"
        ),
    )
    assert probed.out == "done\n"
    assert probed.steps == [1, 2, 3, 4]


def test_a_heartbeat_is_not_written_into_another_attempt(tmp_path):
    """Descriptors closed and another heartbeat at the path: a process left behind writes nothing there."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import os, shutil
train(2)
path = os.environ["HOLDFAST_HEARTBEAT"]
os.closerange(3, 256)
fresh = b"".join([open(path, "rb").read()[:64], bytes(os.path.getsize(path) - 64)])
open(path + "2", "wb").write(fresh)
os.replace(path + "2", path)
train(2)
print(open(path, "rb").read() == fresh)
"""
        ),
        in_memory=False,
    )
    assert probed.out == "True\n"
    assert probed.beats == {}


def test_a_heartbeat_leaves_the_memory_when_the_run_is_over(tmp_path):
    """Where it lies in memory, the run's file says where; at the end that file is the table itself."""
    path = str(tmp_path / "heartbeat")
    heartbeat.create(path)
    lies = heartbeat.find_table(path)
    heart = heartbeat.Heart(path, 0, 4242)
    heart.step(7, 1.0, (1.0, 0.5, 7, 7), "training")
    assert heartbeat.read(path)[0].step == 7
    heart.close()
    heartbeat.settle(path)
    assert heartbeat.read(path)[0][:1] == (7,)
    assert lies == path or not Path(lies).exists()


def test_a_heartbeat_follows_no_file_that_is_not_its_own(tmp_path):
    """A run folder from elsewhere may name any file: it is neither read nor removed."""
    other = tmp_path / "precious"
    other.write_bytes(b"x" * heartbeat.SIZE)
    path = tmp_path / "heartbeat"
    path.write_bytes(heartbeat.ELSEWHERE + str(other).encode())
    assert heartbeat.read(str(path)) == {}
    heartbeat.settle(str(path))
    heartbeat.create(str(path), in_memory=False)
    assert other.read_bytes() == b"x" * heartbeat.SIZE


def test_functions_that_the_probe_stands_before_can_be_pickled(tmp_path):
    """As without it: what a program sends to other processes may hold torch.save or a backward."""
    probed = run(
        tmp_path,
        """
        import pickle, torch
        for function in (torch.save, torch.autograd.backward, torch.autograd.grad, torch.nn.utils.clip_grad_norm_,
                         torch.amp.GradScaler.step, torch.amp.GradScaler.scale, torch.amp.GradScaler("cpu").scale,
                         torch.optim.lr_scheduler.LRScheduler.__init__,
                         torch.nn.parallel.DistributedDataParallel.__init__,
                         torch.utils.data.dataloader._BaseDataLoaderIter.__next__):
            again = pickle.loads(pickle.dumps(function))
            assert again.__name__ == function.__name__
        assert torch.save is torch.serialization.save
        """,
    )
    assert probed.code == 0


def test_values_of_a_device_follow_the_training_to_another_thread(tmp_path):
    """Values wait for the thread that trains; when the training moves to another thread, they are fetched there."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import sys, threading, time
scalars = sys.modules["holdfast_probe.probe"]._probe.scalars
train(2)
scalars.later(torch.zeros(1, device="meta"), lambda values: print("fetched", threading.current_thread().name))
def elsewhere():
    for _ in range(3):
        time.sleep(0.3)
        train(1)
thread = threading.Thread(target=elsewhere, name="elsewhere")
thread.start()
thread.join()
"""
        ),
    )
    assert probed.out == "fetched elsewhere\n"


def test_values_that_nobody_fetches_are_bounded():
    """Beyond a bound the oldest are given up, which is said once; what is left arrives."""
    import torch

    from holdfast.probe.holdfast_probe import deferred_scalars

    notes, got = [], []
    waiting = deferred_scalars.DeferredScalars(torch, lambda *note: notes.append(note))
    for number in range(deferred_scalars.MAX_WAITING + 3):
        waiting.later(torch.zeros(1, device="meta"), lambda values, number=number: got.append(number))
    assert got == [0, 1, 2]
    assert waiting.count == deferred_scalars.MAX_WAITING
    assert len(set(notes)) == 1


def test_looks_stay_out_of_a_captured_graph(tmp_path):
    """While a CUDA graph is captured no look runs: what it reads would become part of the graph."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
torch.cuda.is_current_stream_capturing = lambda: True
torch.cuda._initialized = True
train(4)
torch.cuda._initialized = False
"""
        ),
    )
    assert probed.steps == [1, 2, 3, 4]
    assert [line.grad_norm for line in probed.of(events.Step)] == [None] * 4
    assert probed.of(events.Graph) == []


def test_a_fork_frees_nothing_that_it_inherited(tmp_path):
    """Values that wait on a device, and copies from before a step, must not be freed by a forked process that trains."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import gc, os, sys, weakref
probe = sys.modules["holdfast_probe.probe"]._probe
movement = next(one for one in probe.inspectors[0].inspectors if one.name == "weight-updates")
train(2)
probe.scalars.later(torch.zeros(1, device="meta"), print)
waiting = next(iter(probe.scalars._waiting.values()))[0][0]
copy = torch.zeros(3)
movement._pending[7] = ([copy], 1.0, 1.0)
alive = [weakref.ref(waiting), weakref.ref(copy)]
del waiting, copy
if os.fork() == 0:
    train(3)
    gc.collect()
    print(sum(reference() is not None for reference in alive), len(movement._pending), probe.scalars.count, flush=True)
    os._exit(0)
os.wait()
movement._pending.clear()
probe.scalars._waiting.clear()
"""
        ),
    )
    assert probed.out == "2 0 0\n"


def test_descriptors_that_the_program_closes_are_not_written_to(tmp_path):
    """A program that closes every descriptor and opens its own file must not find our lines in it, nor be stopped."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import os
train(2)
os.closerange(3, 256)
files = [open("mine%d" % index, "wb") for index in range(20)]
train(2)
print(sum(os.path.getsize("mine%d" % index) for index in range(20)))
"""
        ),
    )
    assert probed.out == "0\n"
    assert probed.steps == [1, 2, 3, 4]


def start(tmp_path, folder, text, **more):
    return subprocess.Popen(
        [sys.executable, "-u", str(script(tmp_path, text))],
        env=environment(folder, **more),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


ENDLESS = tiny(
    TRAIN
    + """
import time
train(2)
print("ready")
input()
time.sleep(0.03)
train(1000000)
"""
)


def test_a_training_whose_supervisor_is_gone_stops(tmp_path):
    """Once nobody holds the lock, the next step (of those that are longer than the interval between two checks) ends the
    training with SIGTERM and says why."""
    folder = tmp_path / "attempt"
    with attempt(folder):
        child = start(tmp_path, folder, ENDLESS)
        assert child.stdout.readline() == "ready\n"
    child.communicate("\n", timeout=60)
    assert child.returncode == -signal.SIGTERM
    probed = collect(folder)
    assert [(bye.step, bye.reason) for bye in probed.of(events.ProcessExiting)] == [(3, "supervisor gone")]


def test_a_training_that_outlives_a_supervisor_that_ended_goes_on(tmp_path):
    """A supervisor that came to its own end says so in the lock file: what the training left in the background goes on."""
    folder = tmp_path / "attempt"
    with attempt(folder):
        child = start(tmp_path, folder, ENDLESS.replace("1000000", "5"))
        assert child.stdout.readline() == "ready\n"
        (folder / "lock").write_text(f"{os.getpid()}\nended\n")
    child.communicate("\n", timeout=60)
    assert child.returncode == 0
    assert collect(folder).steps == [1, 2, 3, 4, 5, 6, 7]


def test_observing_only_it_does_not_stop(tmp_path):
    """With HOLDFAST_OBSERVE_ONLY an orphaned training goes on to its end."""
    folder = tmp_path / "attempt"
    with attempt(folder):
        child = start(tmp_path, folder, ENDLESS.replace("1000000", "5"), HOLDFAST_OBSERVE_ONLY="1")
        assert child.stdout.readline() == "ready\n"
    child.communicate("\n", timeout=60)
    assert child.returncode == 0
    assert collect(folder).steps == [1, 2, 3, 4, 5, 6, 7]


def test_stacks_are_written_on_the_signal_that_hello_names(tmp_path):
    """The signal in `attached` has every thread's stack written to the file in `attached`, and does nothing else."""
    folder = tmp_path / "attempt"
    with attempt(folder):
        child = start(tmp_path, folder, ENDLESS.replace("1000000", "1"))
        assert child.stdout.readline() == "ready\n"
        attached = collect(folder).of(events.ProbeAttached)[0]
        assert attached.stack_signal == signal.SIGURG
        os.kill(child.pid, attached.stack_signal)
        give_up = time.monotonic() + 30
        while "train.py" not in Path(attached.stack_file).read_text():
            assert time.monotonic() < give_up
            time.sleep(0.01)
        child.communicate("\n", timeout=60)
    assert child.returncode == 0


def test_a_signal_in_use_is_left_alone(tmp_path):
    """Where SIGURG has a handler, SIGUSR2 serves; where that has one too, there are no stacks and nothing is touched."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import os, signal
signal.signal(signal.SIGURG, lambda *_: print("mine"))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
train(1)
os.kill(os.getpid(), signal.SIGURG)
"""
        ),
    )
    assert probed.out == "mine\n"
    assert probed.of(events.ProbeAttached)[0].stack_signal is None


def test_a_lock_that_was_never_there_is_no_reason_to_stop(tmp_path):
    """A lock file that cannot be opened is noted, and the training goes on."""
    probed = run(tmp_path, tiny(TRAIN + "train(2)\n"), HOLDFAST_LOCK=str(tmp_path / "nothing"))
    assert probed.steps == [1, 2]
    assert "the probe cannot check whether the supervisor is alive" in probed.notes


def test_a_second_process_of_the_same_rank_is_not_the_clock(tmp_path):
    """Trainings that start others, one after the other and two at once: each writes a file of its own and gives signs of life
    in a slot of its own, from the upper end; the slots of those that ended are taken again."""
    probed = run(
        tmp_path,
        tiny(
            TRAIN
            + """
import os, subprocess, sys
train(2)
if "INNER" not in os.environ:
    inner = dict(os.environ, INNER="1")
    subprocess.run([sys.executable, __file__], env=inner, check=True)
    both = [subprocess.Popen([sys.executable, __file__], env=inner, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in "12"]
    for one in both:
        one.stdout.read(1)
    for one in both:
        one.communicate(b"go")
else:
    print(".", flush=True)
    input()
train(1)
""".replace("input()", "sys.stdin.read()")
        ),
    )
    assert len(probed.files) == 4
    assert probed.steps == [1, 2, 3]
    assert {slot: (beat.step, beat.phase) for slot, beat in probed.beats.items()} == {
        0: (3, "ended"),
        254: (3, "ended"),
        255: (3, "ended"),
    }


def test_lock_is_shared_only_for_an_instant(tmp_path):
    """The check lets go at once: a new supervisor can take the lock while an observed training goes on stepping."""
    folder = tmp_path / "attempt"
    with attempt(folder):
        child = start(tmp_path, folder, ENDLESS.replace("1000000", "200"), HOLDFAST_OBSERVE_ONLY="1")
        assert child.stdout.readline() == "ready\n"
    with (folder / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.communicate("\n", timeout=60)
    assert child.returncode == 0
