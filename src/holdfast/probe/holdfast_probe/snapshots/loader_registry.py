"""The state of loaders that outlives a pass: their own state, and the random state of persistent workers."""

from .fingerprint import of_loader
from .loader_state import LoaderState, mark
from .resumable_iter import ResumableIter, generators_of
from .worker_state import finish


class Loaders(object):
    """Loaders, each identified by the number of its first pass in an epoch.

    The state of a loader is restored unless the program sets it between a point where snapshots are taken and the pass, as with
    `generator.manual_seed(epoch)`: the resumed program does so again.
    """

    def __init__(self, torch):
        self._torch = torch
        self._known = {}
        self._held = {}
        self._workers = {}
        self._like = {}
        self._open = None
        """The key of the loader that is being read."""
        self._first = {}
        """Hashes of the state of each loader when it was first used, in the first attempt."""
        self._passes = {}
        self._set_by_program = {}
        """Names of values that the program was seen to set between the last snapshot point and the pass."""
        self._last = {}
        """Hashes at that point."""
        self._before = {}
        """The state of loaders that are not used yet in this attempt,"""
        self._like_before = {}
        """and their descriptions."""
        self._generators_before = {}
        self._met_on_the_way = {}
        self._arrived = True
        self._back = []

    def state(self):
        self._finish()
        held, like = dict(self._before), dict(self._like_before)
        held.update((place, one.now()) for place, one in self._held.items())
        like.update(self._like)
        return {
            "held": held,
            "like": like,
            "first": {place: dict(marks) for place, marks in self._first.items()},
            "passes": dict(self._passes),
            "set": {place: sorted(names) for place, names in self._set_by_program.items()},
            "workers": {place: dict(each) for place, each in self._workers.items() if each},
        }

    def go_on(self, state):
        self._before = dict(state.get("held", {}))
        self._like_before = dict(state.get("like", {}))
        self._generators_before = dict(state.get("generators", {}))  # from older snapshots
        self._first = {place: dict(marks) for place, marks in state.get("first", {}).items()}
        self._passes = dict(state.get("passes", {}))
        self._set_by_program = {place: set(names) for place, names in state.get("set", {}).items()}
        self._workers = {place: dict(each) for place, each in state["workers"].items()}
        self._arrived = False

    def arrive(self):
        """At the resume point: discard what the program did to loaders before it, because the snapshot already contains that."""
        self._arrived = True
        for held, states in self._met_on_the_way.values():
            held.set(states)
        self._met_on_the_way = {}
        self.at_a_place()

    def at_a_place(self):
        """Record hashes at a point where a snapshot may be taken."""
        self._last = {
            place: {name: mark(state) for name, state in held.everything().items()}
            for place, held in self._held.items()
        }

    def meet(self, call, loader, give_back=True):
        """Register a loader at the start of pass number `call` of the epoch and return its key. Restore each of its values, only once, because
        loaders may share a generator.
        """
        place = next((place for place, known in self._known.items() if known is loader), call)
        held = LoaderState(self._torch, loader, self._first.setdefault(place, {}))
        now = {name: mark(state) for name, state in held.everything().items()}
        self._compare(place, now)
        if now or place in self._before or _lives_on(loader):
            self._known[place], self._held[place] = loader, held
        else:
            self._known.pop(place, None)
            self._held.pop(place, None)
        states = self._before.pop(place, {})
        if not self._arrived:
            self._met_on_the_way[place] = (held, states)
        elif give_back:
            self._give_back(place, held, now, states)
            self._give_back_older(place, loader)
        self._generators_before.pop(place, None)
        self._back.extend(held.generators().values())
        for name, state in now.items():
            held.first.setdefault(name, state)
        self._passes[place] = self._passes.get(place, 0) + 1
        return place

    def _compare(self, place, now):
        last = self._last.get(place, {}) if self._arrived else {}
        changed = {name for name, state in now.items() if last.get(name, state) != state}
        if changed:
            self._set_by_program.setdefault(place, set()).update(changed)

    def _give_back(self, place, held, now, states):
        generators, by_program = held.generators(), self._set_by_program.get(place, ())
        for name, state in states.items():
            shared = any(generators.get(name) is known for known in self._back) and name in generators
            if shared or name in by_program:
                continue
            # After a single pass it is unknown what the program sets: a value that differs from the first attempt was set by it.
            if self._passes.get(place, 0) > 1 or name not in now or now[name] == held.first.get(name):
                held.set({name: state})

    def _give_back_older(self, place, loader):
        for generator, was in zip(generators_of(self._torch, loader), self._generators_before.get(place, ())):
            if not any(generator is known for known in self._back):
                generator.set_state(was.clone())

    def pass_over(self, place, loader, resuming):
        if not self._arrived:
            self.arrive()
        self._open = place
        like_before = self._like_before.pop(place, None)
        self._like[place] = of_loader(self._torch, loader)
        if resuming is not None and "workers" in resuming:
            self._workers[place] = dict(resuming["workers"])
        workers = self._workers.setdefault(place, {})
        return ResumableIter(self._torch, loader, resuming, workers, self._held.get(place), like_before)

    def passed(self, place, loader):
        self._open = None
        if not _lives_on(loader):
            self._workers.pop(place, None)
        self.at_a_place()

    def _finish(self):
        """Let persistent workers finish their outstanding tasks if a pass was left early."""
        for place, loader in self._known.items():
            alive = getattr(loader, "_iterator", None)
            if place != self._open and alive is not None:
                finish(alive, self._workers.setdefault(place, {}))


def _lives_on(loader):
    return bool(getattr(loader, "persistent_workers", False))
