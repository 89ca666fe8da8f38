"""`holdfast.guard`: a training loop that can be killed at any point and then resumes as if it had not been interrupted.

    with holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):
                ...

On entry, every object gets the state of the newest valid snapshot. Between two batches, a new snapshot is taken when
one is due. This works with and without the supervisor, and in a notebook.
"""

import contextlib
import os
import sys
import time

from . import protocol
from .snapshots.fingerprint import count_batches, differences, fingerprint, settings
from .snapshots.folder_lock import FolderLock
from .snapshots.interval import BUDGET
from .snapshots.loader_registry import Loaders
from .snapshots.loss_trace import LossTrace
from .snapshots.param_groups import GroupsDiffer
from .snapshots.restore import clone_tensors
from .snapshots.rng import get_rng_states, set_rng_states
from .snapshots.snapshotter import make_snapshotter
from .snapshots.stateful import StatefulObjects
from .snapshots.store import Store
from .snapshots.user_state import restore_user_state

DEFAULT_FOLDER = os.path.join(".holdfast", "guard")
EXIT_SECONDS = 600.0
SOURCE = "guard"
SNAPSHOT_KEYS = ("parts", "place", "own")
ONE_LOADER_ONLY = (
    "run.batches iterates over one loader at a time, and another iteration has not finished. Iterate over the other "
    "loader directly, or pass run.batches a single object that yields from both."
)


class CannotResume(RuntimeError):
    """The snapshot belongs to a different training."""


class Guard(object):
    def __init__(self, torch, parts, folder, max_lost_work, budget):
        self._torch = torch
        if not parts:
            raise TypeError(
                "guard() needs the objects to save, as keyword arguments: guard(model=model, optimizer=optimizer)"
            )
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError("%s is a %s, which has no state_dict or load_state_dict" % (name, type(part).__name__))
        self._objects = StatefulObjects(torch, parts)
        rank, world_size = _get_rank_and_world_size(torch)
        self._lock = FolderLock(folder, rank)
        self._store = Store(self._lock.folder, rank, world_size)
        self._probe = _find_probe()
        self._fingerprint, self._settings = fingerprint(torch, parts), settings(torch, parts)
        self._snapshots = make_snapshotter(torch, self._store, self._emit, max_lost_work, budget)
        self.state = {}
        """The program's own values, such as its best score so far. They are saved and restored."""
        self.restored = None
        """The step of the snapshot that was resumed from; None for a fresh start."""
        self._loops = 0
        """Number of epoch loops started so far: a program may run several, one after another."""
        self._epoch = None
        self._call = 0
        """Number of passes started in this epoch."""
        self._position = 0
        self._snapshot_requested = False
        self._pass = None
        self._unfinished_pass = None
        """The last pass, if the program left it before its end and has not started another one since."""
        self._loaders = Loaders(torch)
        self._resume_state = None
        """The state to resume from, until the program reaches the point where it was taken."""
        # On a device, losses are read with a delay that varies.
        compares_losses = self._probe is not None and world_size == 1 and self._fingerprint["devices"] == ["cpu"]
        self._trace = LossTrace(self._lock.folder, self._emit) if compares_losses else None

    # --- public interface ----------------------------------------------------------------------------------------

    def __enter__(self):
        if self._probe is not None:
            self._probe.see("snapshots", "holdfast.guard")
        self._lock.acquire()
        try:
            self._begin()
        except BaseException:
            self._lock.release(finished=False)
            raise
        return self

    def _begin(self):
        snapshot = self._store.begin(self._torch, self._report_skipped_snapshot, SNAPSHOT_KEYS)
        if snapshot is not None:
            self._restore(snapshot)
        elif self._trace is not None:
            self._trace.clear()

    def __exit__(self, kind, error, trace):
        pauses = self._snapshot_requested and (kind is None or issubclass(kind, SystemExit)) and self._is_mid_pass()
        if pauses:
            self._snapshot_requested = False
            self._take_snapshot()
        self._snapshots.flush(EXIT_SECONDS)
        ended = kind is None and not pauses
        if ended and _is_last_rank_to_exit(self._torch, self._store):
            self._store.clear()
        self._lock.release(finished=ended)
        return False

    def _is_mid_pass(self):
        """Return True in the middle of a pass: a program that requests a snapshot and exits has not finished."""
        self._pass = self._pass or self._unfinished_pass
        return self._pass is not None

    def epochs(self, count):
        """Yield the numbers of the remaining epochs, counted from 0."""
        loop, self._loops = self._loops, self._loops + 1
        if self._resume_state is not None and loop < self._resume_state["place"].get("loop", 0):
            return  # this loop was finished before the snapshot
        first = 0 if self._resume_state is None else self._resume_state["place"]["epoch"] or 0
        for epoch in range(first, count):
            self._epoch, self._call, self._unfinished_pass = epoch, 0, None
            if self._resume_state is None:
                self._take_snapshot_if_due()
            elif self._resume_state["place"]["pass"] is None:
                self._finish_restore()
            self._loaders.record_hashes()
            began, position = time.monotonic(), self._position
            self._take_over_epochs()
            yield epoch
            if self._probe is not None:
                seconds, batches = time.monotonic() - began, self._position - position
                self._probe.epoch_ended(epoch + 1, seconds, batches, SOURCE, planned=count)
        self._resume_state = None

    def _take_over_epochs(self):
        """Report epochs from now on: after a crash, a pass may be only the rest of an epoch."""
        if self._probe is not None:
            self._probe.loaders.epochs_known_by = SOURCE

    def batches(self, loader):
        """Yield the remaining batches of one pass over a loader."""
        if self._pass is not None:
            # A snapshot stores the position in one loader only: the other position would be lost silently.
            raise RuntimeError(ONE_LOADER_ONLY)
        self._unfinished_pass = None
        call, self._call = self._call, self._call + 1
        resume_state = self._resume_state
        if (
            resume_state is not None
            and resume_state["place"]["pass"] is not None
            and call < resume_state["place"]["call"]
        ):
            self._loaders.register(call, loader, restore=False)
            return  # this pass was finished before the snapshot
        resumed_pass = None if resume_state is None else self._finish_restore()
        place = self._loaders.register(call, loader, restore=resumed_pass is None)
        loader_pass = self._pass = self._loaders.start_pass(place, loader, resumed_pass)
        last = self._last_batch(loader)
        reason = loader_pass.why_not_exact()
        if reason is not None:
            self._emit("probe-note", what="this resume may not be exact", detail=reason)
        try:
            for batch in loader_pass:
                self._position += 1
                yield batch
                if self._trace is not None:
                    self._trace.add(self._position, self._probe.step, self._probe.last_loss)
                if loader_pass.batches != last:
                    self._take_snapshot_if_due(is_later_pass=call > 0)
        except GeneratorExit:
            self._unfinished_pass = loader_pass
            raise
        finally:
            self._loaders.end_pass(place, loader)
            self._pass = None

    def _last_batch(self, loader):
        """Return the number of the last batch, after which no snapshot is taken. A run that resumed there would find no
        batch left, and the variables that the loop fills would be empty. The start of the next epoch serves as well, or
        the next pass if there are no epochs.
        """
        count = count_batches(self._torch, loader)
        return None if count == 1 and self._epoch is None else count

    def snapshot(self):
        """Request a snapshot at the end of this batch, even if none is due. Between two passes, it is taken at the next
        point that a training can resume from. Otherwise, whatever the program did since the last pass would be done
        twice.
        """
        self._snapshot_requested = True
        if self._epoch is None and not self._call:
            self._take_snapshot_if_due()

    # --- between two batches -------------------------------------------------------------------------------------

    def _take_snapshot_if_due(self, is_later_pass=False):
        """Take a snapshot if one is due or was requested. `is_later_pass` means that this pass is not the first of its
        epoch. If the run resumed here, the earlier passes would yield nothing. So the snapshot waits until more work
        than allowed would be lost without it.
        """
        if self._snapshot_requested or (
            self._snapshots.is_due(self._position) and not (is_later_pass and self._snapshots.may_wait())
        ):
            self._snapshot_requested = False
            self._take_snapshot()

    def _take_snapshot(self):
        step = self._probe.step if self._probe is not None and self._probe.awake else self._position
        began = time.monotonic()
        self._snapshots.flush()  # at most one copy in memory
        about = {"fingerprint": self._fingerprint, "settings": self._settings}
        self._snapshots.take(self._position, step, self._collect, about)
        if self._probe is not None:
            self._probe.paused(time.monotonic() - began)

    def _collect(self):
        loader_pass = self._pass
        place = {
            "loop": self._loops - 1,
            "epoch": self._epoch,
            "call": self._call - 1 if loader_pass is not None else 0,
            "pass": None if loader_pass is None else loader_pass.state(),
            "rng": get_rng_states(self._torch) if loader_pass is None else None,
            "loaders": self._loaders.state(),
        }
        parts = self._objects.state()
        return {"parts": parts, "modes": self._objects.modes(), "place": place, "own": self.state}

    def _restore(self, snapshot):
        with self._explain_errors(snapshot.path):
            self._objects.restore(snapshot.state["parts"], before_resume_point=True)
            self._loaders.load_state(snapshot.state["place"]["loaders"])
        self.state.update(clone_tensors(self._torch, snapshot.state["own"]))
        self._resume_state = snapshot.state
        self._position = snapshot.position
        self.restored = snapshot.step
        if self._trace is not None:
            self._trace.resume_from(snapshot.position)
        if self._probe is not None:
            self._probe.set_resumed_step(snapshot.step)
        changes = self._find_changes(snapshot.header)
        self._emit("restored", step=snapshot.step, path=snapshot.path, exact=not changes, why="; ".join(changes)[:500])

    def _find_changes(self, header):
        changed_settings = differences(header.get("settings", self._settings), self._settings)
        if changed_settings:
            changed_settings.append(
                "the run resumes with the old settings; to start with the new ones, remove %s" % self._store.folder
            )
        return differences(header.get("fingerprint", {}), self._fingerprint) + changed_settings

    def _finish_restore(self):
        """Restore the state at the point where the snapshot was taken, and return the pass to resume. Everything that
        the program did up to here was done before the snapshot was taken.
        """
        state, self._resume_state = self._resume_state, None
        with self._explain_errors("the snapshot"):
            self._objects.restore(state["parts"])
        self._objects.set_modes(state.get("modes", {}))  # older snapshots do not contain modes
        restore_user_state(self._torch, self.state, state["own"], self._objects.memory())
        self._loaders.reach_resume_point()
        if state["place"]["pass"] is None:
            set_rng_states(self._torch, state["place"]["rng"])
        return state["place"]["pass"]

    @contextlib.contextmanager
    def _explain_errors(self, snapshot):
        try:
            yield
        except GroupsDiffer as error:
            raise CannotResume(
                "%s is valid, but %s. To resume, give the optimizer the same number of parameter groups before "
                "entering guard()." % (snapshot, error)
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CannotResume(
                "%s belongs to a different training: %s. To start fresh, use another folder or remove %s."
                % (snapshot, error, self._store.folder)
            ) from None

    def _report_skipped_snapshot(self, path, why, foreign):
        if foreign:
            self._emit("probe-note", what="a snapshot was skipped", detail="%s: %s" % (path, why))
        else:
            self._emit("snapshot-corrupt", path=path, why=why)

    def _emit(self, event, **fields):
        if self._probe is not None:
            self._probe.claim("guard")
            self._probe.emit(event, **fields)
        elif event != "snapshot":
            details = ", ".join("%s %s" % item for item in fields.items() if item[1] not in ("", True))
            try:
                print("holdfast: %s: %s" % (event.replace("-", " "), details), file=sys.stderr)
            except (OSError, ValueError, AttributeError):  # stderr is closed or missing
                pass


def guard(*, folder=None, max_lost_work=None, budget=BUDGET, **parts):
    """Save the state of these objects regularly, and restore it after a crash.

    Pass any object that has a `state_dict` and a `load_state_dict`, as a keyword argument.

    `folder` is where snapshots are stored (default: the run's own folder under Holdfast, otherwise
    .holdfast/guard/<script>). `max_lost_work` limits how many seconds of work a crash may cost. `budget` limits the
    fraction of the time that snapshots may take.
    """
    import torch

    chosen = folder or os.environ.get(protocol.SNAPSHOTS) or os.path.join(DEFAULT_FOLDER, _script_name())
    return Guard(torch, parts, os.path.abspath(chosen), max_lost_work, budget)


def _find_probe():
    module = sys.modules.get("holdfast_probe.probe")
    return getattr(module, "_probe", None)


def _get_rank_and_world_size(torch):
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _is_last_rank_to_exit(torch, store):
    """Return True if all other ranks have finished: as long as one may crash, all need the snapshots."""
    if store.world_size == 1:
        return True
    try:
        shared_store = torch.distributed.distributed_c10d._get_default_store()
        return shared_store.add("holdfast left " + store.folder, 1) % store.world_size == 0
    except Exception:  # the process group has been destroyed
        return store.rank == 0


def _script_name():
    name = os.path.splitext(os.path.basename(sys.argv[0] or ""))[0]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "notebook"
