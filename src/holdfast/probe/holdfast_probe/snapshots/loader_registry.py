"""The state of loaders that outlives a pass: their own state, and the random state of persistent workers."""

from .fingerprint import describe_loader
from .loader_state import LoaderState, hash_state
from .resumable_iter import ResumableIter, find_generators
from .worker_state import finish_tasks


class Loaders(object):
    """Loaders, each identified by the number of its first pass in an epoch.

    The state of a loader is restored unless the program sets it between a point where snapshots are taken and the pass,
    as with `generator.manual_seed(epoch)`: the resumed program does so again.
    """

    def __init__(self, torch):
        self._torch = torch
        self._loaders = {}
        self._loader_states = {}
        self._workers = {}
        self._descriptions = {}
        self._reading = None
        """The key of the loader that is being read."""
        self._first_hashes = {}
        """Hashes of the state of each loader when it was first used, in the first attempt."""
        self._passes = {}
        self._set_by_program = {}
        """Names of values that the program was seen to set between the last snapshot point and the pass."""
        self._last_hashes = {}
        """Hashes at that point."""
        self._previous_states = {}
        """The state of loaders that are not used yet in this attempt,"""
        self._previous_descriptions = {}
        """and their descriptions."""
        self._previous_generators = {}
        self._used_before_resume_point = {}
        self._reached_resume_point = True
        self._restored_generators = []

    def state(self):
        self._finish_tasks()
        loader_states, descriptions = dict(self._previous_states), dict(self._previous_descriptions)
        loader_states.update((key, loader_state.get_state()) for key, loader_state in self._loader_states.items())
        descriptions.update(self._descriptions)
        return {
            "held": loader_states,
            "like": descriptions,
            "first": {key: dict(loader_hashes) for key, loader_hashes in self._first_hashes.items()},
            "passes": dict(self._passes),
            "set": {key: sorted(names) for key, names in self._set_by_program.items()},
            "workers": {key: dict(worker_states) for key, worker_states in self._workers.items() if worker_states},
        }

    def load_state(self, state):
        self._previous_states = dict(state.get("held", {}))
        self._previous_descriptions = dict(state.get("like", {}))
        self._previous_generators = dict(state.get("generators", {}))  # from older snapshots
        self._first_hashes = {key: dict(loader_hashes) for key, loader_hashes in state.get("first", {}).items()}
        self._passes = dict(state.get("passes", {}))
        self._set_by_program = {key: set(names) for key, names in state.get("set", {}).items()}
        self._workers = {key: dict(worker_states) for key, worker_states in state["workers"].items()}
        self._reached_resume_point = False

    def reach_resume_point(self):
        """At the resume point: discard what the program did to loaders before it, because the snapshot already contains
        that.
        """
        self._reached_resume_point = True
        for loader_state, states in self._used_before_resume_point.values():
            loader_state.set_state(states)
        self._used_before_resume_point = {}
        self.record_hashes()

    def record_hashes(self):
        """Record hashes at a point where a snapshot may be taken."""
        self._last_hashes = {
            key: {name: hash_state(state) for name, state in loader_state.get_all_states().items()}
            for key, loader_state in self._loader_states.items()
        }

    def register(self, pass_number, loader, restore=True):
        """Register a loader at the start of a pass over it and return its key. Restore each of its values only once,
        because loaders may share a generator.
        """
        key = next((key for key, other in self._loaders.items() if other is loader), pass_number)
        loader_state = LoaderState(self._torch, loader, self._first_hashes.setdefault(key, {}))
        hashes = {name: hash_state(state) for name, state in loader_state.get_all_states().items()}
        self._record_set_by_program(key, hashes)
        if hashes or key in self._previous_states or _has_persistent_workers(loader):
            self._loaders[key], self._loader_states[key] = loader, loader_state
        else:
            self._loaders.pop(key, None)
            self._loader_states.pop(key, None)
        states = self._previous_states.pop(key, {})
        if not self._reached_resume_point:
            self._used_before_resume_point[key] = (loader_state, states)
        elif restore:
            self._restore(key, loader_state, hashes, states)
            self._restore_generators(key, loader)
        self._previous_generators.pop(key, None)
        self._restored_generators.extend(loader_state.get_generators().values())
        for name, state in hashes.items():
            loader_state.first_hashes.setdefault(name, state)
        self._passes[key] = self._passes.get(key, 0) + 1
        return key

    def _record_set_by_program(self, key, hashes):
        last_hashes = self._last_hashes.get(key, {}) if self._reached_resume_point else {}
        changed = {name for name, state in hashes.items() if last_hashes.get(name, state) != state}
        if changed:
            self._set_by_program.setdefault(key, set()).update(changed)

    def _restore(self, key, loader_state, hashes, states):
        generators, set_by_program = loader_state.get_generators(), self._set_by_program.get(key, ())
        for name, state in states.items():
            shared = any(generators.get(name) is other for other in self._restored_generators) and name in generators
            if shared or name in set_by_program:
                continue
            # After a single pass it is unknown what the program sets: a value that differs from its first use was set
            # by it.
            if (
                self._passes.get(key, 0) > 1
                or name not in hashes
                or hashes[name] == loader_state.first_hashes.get(name)
            ):
                loader_state.set_state({name: state})

    def _restore_generators(self, key, loader):
        for generator, saved in zip(find_generators(self._torch, loader), self._previous_generators.get(key, ())):
            if not any(generator is other for other in self._restored_generators):
                generator.set_state(saved.clone())

    def start_pass(self, key, loader, resume_state):
        if not self._reached_resume_point:
            self.reach_resume_point()
        self._reading = key
        previous_description = self._previous_descriptions.pop(key, None)
        self._descriptions[key] = describe_loader(self._torch, loader)
        if resume_state is not None and "workers" in resume_state:
            self._workers[key] = dict(resume_state["workers"])
        workers = self._workers.setdefault(key, {})
        return ResumableIter(
            self._torch, loader, resume_state, workers, self._loader_states.get(key), previous_description
        )

    def end_pass(self, key, loader):
        self._reading = None
        if not _has_persistent_workers(loader):
            self._workers.pop(key, None)
        self.record_hashes()

    def _finish_tasks(self):
        """Let persistent workers finish their outstanding tasks if a pass was left early."""
        for key, loader in self._loaders.items():
            iterator = getattr(loader, "_iterator", None)
            if key != self._reading and iterator is not None:
                finish_tasks(iterator, self._workers.setdefault(key, {}))


def _has_persistent_workers(loader):
    return bool(getattr(loader, "persistent_workers", False))
