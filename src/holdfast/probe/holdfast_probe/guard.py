"""`holdfast.guard`: a training loop that can be killed anywhere and goes on as if it had not been.

    with holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):
                ...

Entering gives every object the state of the newest good snapshot. Between two batches a new one is taken when it is due. It works
with the supervisor and without; in a notebook too.
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

ALONE = os.path.join(".holdfast", "guard")
LEAVE_SECONDS = 600.0
SOURCE = "guard"
HOLDS = ("parts", "place", "own")
ONE_AT_A_TIME = (
    "run.batches goes over one loader at a time, and another pass has not ended. Go over the other loader itself, "
    "or give run.batches one object that yields from both."
)


class CannotResume(RuntimeError):
    """The snapshot is of another training than this one."""


class Guard(object):
    def __init__(self, torch, parts, folder, most_lost, budget):
        self._torch = torch
        if not parts:
            raise TypeError("guard() needs what it is to keep, by name: guard(model=model, optimizer=optimizer)")
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError("%s is a %s, which has no state_dict" % (name, type(part).__name__))
        self._objects = StatefulObjects(torch, parts)
        rank, world_size = _rank_and_world(torch)
        self._claim = FolderLock(folder, rank)
        self._store = Store(self._claim.folder, rank, world_size)
        self._probe = _awake_probe()
        self._fingerprint, self._settings = fingerprint(torch, parts), settings(torch, parts)
        self._snapshots = make_snapshotter(torch, self._store, self._tell, most_lost, budget)
        self.state = {}
        """For values of the program's own, as its best score so far: they are kept and given back."""
        self.restored = None
        """The step that it goes on from; None for a fresh start."""
        self._loops = 0
        """Loops over epochs that were begun: a program may have one after another."""
        self._epoch = None
        self._call = 0
        """Passes that were begun in this epoch."""
        self._position = 0
        self._asked = False
        self._pass = None
        self._left_early = None
        """The last pass, where the program left it before its end and has begun nothing since."""
        self._loaders = Loaders(torch)
        self._ahead = None
        """The state that it goes on from, until the program has come to the place where that was taken."""
        # On a device losses are read later, and not always as much later.
        compares = self._probe is not None and world_size == 1 and self._fingerprint["devices"] == ["cpu"]
        self._trace = LossTrace(self._claim.folder, self._tell) if compares else None

    # --- the user's side -----------------------------------------------------------------------------------------

    def __enter__(self):
        if self._probe is not None:
            self._probe.see("snapshots", "seen: holdfast.guard")
        self._claim.acquire()
        try:
            self._begin()
        except BaseException:
            self._claim.release(finished=False)
            raise
        return self

    def _begin(self):
        snapshot = self._store.begin(self._torch, self._torn, HOLDS)
        if snapshot is not None:
            self._give_back(snapshot)
        elif self._trace is not None:
            self._trace.clear()

    def __exit__(self, kind, error, trace):
        pauses = self._asked and (kind is None or issubclass(kind, SystemExit)) and self._may_go_on_here()
        if pauses:
            self._asked = False
            self._take()
        self._snapshots.flush(LEAVE_SECONDS)
        ended = kind is None and not pauses
        if ended and _last_to_leave(self._torch, self._store):
            self._store.clear()
        self._claim.release(finished=ended)
        return False

    def _may_go_on_here(self):
        """Whether the program leaves in the middle of a pass: one that asks for a snapshot and leaves is not at its end."""
        self._pass = self._pass or self._left_early
        return self._pass is not None

    def epochs(self, count):
        """The epochs that are still to be made, counted from 0."""
        loop, self._loops = self._loops, self._loops + 1
        if self._ahead is not None and loop < self._ahead["place"].get("loop", 0):
            return  # this loop was over
        first = 0 if self._ahead is None else self._ahead["place"]["epoch"] or 0
        for epoch in range(first, count):
            self._epoch, self._call, self._left_early = epoch, 0, None
            if self._ahead is None:
                self._between()
            elif self._ahead["place"]["pass"] is None:
                self._arrive()
            self._loaders.record_hashes()
            began, position = time.monotonic(), self._position
            self._knows_epochs()
            yield epoch
            if self._probe is not None:
                seconds, batches = time.monotonic() - began, self._position - position
                self._probe.epoch_ended(epoch + 1, seconds, batches, SOURCE, planned=count)
        self._ahead = None

    def _knows_epochs(self):
        """From here on the end of a pass is no epoch: after a death, part of one is the rest of an epoch begun before."""
        if self._probe is not None:
            self._probe.loaders.epochs_known_by = SOURCE

    def batches(self, loader):
        """What is still to come of one pass over a loader."""
        if self._pass is not None:
            # A snapshot keeps the place in one: the other's would be lost without a word.
            raise RuntimeError(ONE_AT_A_TIME)
        self._left_early = None
        call, self._call = self._call, self._call + 1
        if self._ahead is not None and self._ahead["place"]["pass"] is not None and call < self._ahead["place"]["call"]:
            self._loaders.register(call, loader, restore=False)
            return  # this pass was over
        resuming = None if self._ahead is None else self._arrive()
        place = self._loaders.register(call, loader, restore=resuming is None)
        one = self._pass = self._loaders.start_pass(place, loader, resuming)
        last = self._last_of(loader)
        reason = one.why_not_exact()
        if reason is not None:
            self._tell("probe-note", what="this resume may not be exact", detail=reason)
        try:
            for batch in one:
                self._position += 1
                yield batch
                if self._trace is not None:
                    self._trace.add(self._position, self._probe.step, self._probe.last_loss)
                if one.batches != last:
                    self._between(again=call > 0)
        except GeneratorExit:
            self._left_early = one
            raise
        finally:
            self._loaders.end_pass(place, loader)
            self._pass = None

    def _last_of(self, loader):
        """The batch after which none is taken: who goes on from there finds no batch left, and nothing in the variables that the loop fills. The
        next epoch is as good a place, or the next pass where there are no epochs.
        """
        count = count_batches(self._torch, loader)
        return None if count == 1 and self._epoch is None else count

    def snapshot(self):
        """One at the end of this batch, whether it is due or not. Between two passes, at the next place from which a training can go on: what
        the program did since the last pass would be done twice.
        """
        self._asked = True
        if self._epoch is None and not self._call:
            self._between()

    # --- between two batches -------------------------------------------------------------------------------------

    def _between(self, again=False):
        """With `again`, in a pass that is not its epoch's first: the passes before it would yield nothing to who goes on from here, so it is not
        taken before more would be lost than may be.
        """
        if self._asked or (self._snapshots.is_due(self._position) and not (again and self._snapshots.may_wait())):
            self._asked = False
            self._take()

    def _take(self):
        step = self._probe.step if self._probe is not None and self._probe.awake else self._position
        began = time.monotonic()
        self._snapshots.flush()  # one copy in memory at most
        about = {"fingerprint": self._fingerprint, "settings": self._settings}
        self._snapshots.take(self._position, step, self._collect, about)
        if self._probe is not None:
            self._probe.paused(time.monotonic() - began)

    def _collect(self):
        one = self._pass
        place = {
            "loop": self._loops - 1,
            "epoch": self._epoch,
            "call": self._call - 1 if one is not None else 0,
            "pass": None if one is None else one.state(),
            "rng": get_rng_states(self._torch) if one is None else None,
            "loaders": self._loaders.state(),
        }
        parts = self._objects.state()
        return {"parts": parts, "modes": self._objects.modes(), "place": place, "own": self.state}

    def _give_back(self, snapshot):
        with self._in_words(snapshot.path):
            self._objects.restore(snapshot.state["parts"], before_resume_point=True)
            self._loaders.load_state(snapshot.state["place"]["loaders"])
        self.state.update(clone_tensors(self._torch, snapshot.state["own"]))
        self._ahead = snapshot.state
        self._position = snapshot.position
        self.restored = snapshot.step
        if self._trace is not None:
            self._trace.resume_from(snapshot.position)
        if self._probe is not None:
            self._probe.goes_on_from(snapshot.step)
        other = self._what_differs(snapshot.header)
        self._tell("restored", step=snapshot.step, path=snapshot.path, exact=not other, why="; ".join(other)[:500])

    def _what_differs(self, header):
        set_otherwise = differences(header.get("settings", self._settings), self._settings)
        if set_otherwise:
            set_otherwise.append("it goes on as it was; to start with what is set now, remove %s" % self._store.folder)
        return differences(header.get("fingerprint", {}), self._fingerprint) + set_otherwise

    def _arrive(self):
        """At the place of the snapshot: what the program did on its way here, it had done before that was taken. Returns the pass to go on with."""
        state, self._ahead = self._ahead, None
        with self._in_words("the snapshot"):
            self._objects.restore(state["parts"])
        self._objects.set_modes(state.get("modes", {}))  # older snapshots have none
        restore_user_state(self._torch, self.state, state["own"], self._objects.memory())
        self._loaders.reach_resume_point()
        if state["place"]["pass"] is None:
            set_rng_states(self._torch, state["place"]["rng"])
        return state["place"]["pass"]

    @contextlib.contextmanager
    def _in_words(self, snapshot):
        try:
            yield
        except GroupsDiffer as error:
            raise CannotResume(
                "%s is good, but %s. Where the optimizer has as many groups as then when guard() is entered, it goes on."
                % (snapshot, error)
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CannotResume(
                "%s is of another training: %s. Start fresh with another folder, or remove %s."
                % (snapshot, error, self._store.folder)
            ) from None

    def _torn(self, path, why, foreign):
        if foreign:
            self._tell("probe-note", what="a snapshot was passed over", detail="%s: %s" % (path, why))
        else:
            self._tell("snapshot-corrupt", path=path, why=why)

    def _tell(self, event, **fields):
        if self._probe is not None:
            self._probe.claim("guard")
            self._probe.emit(event, **fields)
        elif event != "snapshot":
            said = ", ".join("%s %s" % item for item in fields.items() if item[1] not in ("", True))
            try:
                print("holdfast: %s: %s" % (event.replace("-", " "), said), file=sys.stderr)
            except (OSError, ValueError, AttributeError):  # nobody reads it
                pass


def guard(*, folder=None, max_lost_work=None, budget=BUDGET, **parts):
    """Keeps the state of these objects, and gives it back after a death. Anything with a `state_dict` will do, by name.

    `folder` is where snapshots go (the run's own under Holdfast, else .holdfast/guard/<script>). `max_lost_work` bounds the seconds of
    work that a death may cost; `budget` the part of the time that snapshots may take.
    """
    import torch

    given = folder or os.environ.get(protocol.SNAPSHOTS) or os.path.join(ALONE, _script())
    return Guard(torch, parts, os.path.abspath(given), max_lost_work, budget)


def _awake_probe():
    module = sys.modules.get("holdfast_probe.probe")
    return getattr(module, "_probe", None)


def _rank_and_world(torch):
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _last_to_leave(torch, store):
    """Whether the training is over on all ranks: while one may still die, all need what they go on from."""
    if store.world_size == 1:
        return True
    try:
        meeting = torch.distributed.distributed_c10d._get_default_store()
        return meeting.add("holdfast left " + store.folder, 1) % store.world_size == 0
    except Exception:  # the ranks' group has ended before
        return store.rank == 0


def _script():
    name = os.path.splitext(os.path.basename(sys.argv[0] or ""))[0]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "notebook"
