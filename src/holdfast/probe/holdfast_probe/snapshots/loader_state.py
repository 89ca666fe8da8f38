"""The mutable state of a loader: random number generators, and the counters and lists of samplers.

It is found by walking attributes, without calling any code of the program. Each value is named by its attribute path
(`sampler.base.rng`). Its state is a text, so that it is saved, compared and sent by a worker in the same way.
"""

import base64
import functools
import hashlib
import json
import random
import sys
import types
from collections import deque

from .rng import packed_python, unpacked_python

MAX_LOOKED_AT = 1000
MAX_DEPTH = 6
MAX_LOOKED_THROUGH = 64
MAX_NUMBERS = 100_000
"""Maximum length of a list in a sampler: `random.shuffle(self.indices)` derives each order from the previous one."""
NUMBERS = frozenset((bool, int, float, str))
TORCHS = "torch."
"""torch's own samplers store only constructor arguments besides generators."""
NOT_OF_LOADERS = frozenset(("_iterator", "worker_init_fn", "multiprocessing_context"))
_CONTAINERS = (dict, list, tuple)
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class _Thing(object):
    """`within[key]`: a generator, or a number or list of a sampler."""

    __slots__ = ("key", "value", "within")

    def __init__(self, within, key, value):
        self.within = within
        self.key = key
        self.value = value


class LoaderState(object):
    """The state of one loader: reads and restores it."""

    def __init__(self, torch, loader, first=None):
        self._torch = torch
        self._loader = loader
        self.first = {} if first is None else first
        """Hashes of the states at first use in the first attempt. Unchanged numbers and lists are not saved."""

    def now(self):
        states = self.everything()
        return {name: state for name, state in states.items() if _draws(state) or self.first.get(name) != mark(state)}

    def everything(self):
        return self._look().states()

    def set(self, states):
        look = self._look()
        for name, state in states.items():
            look.set(name, state)

    def generators(self):
        """Return the generators by name."""
        return {name: thing.value for name, thing in self._look().things.items() if type(thing.value) not in NUMBERS}

    def _look(self):
        look = _Look(self._torch)
        try:
            look.at_loader(self._loader)
        except Exception:  # an object that cannot be inspected; keep what was found so far
            pass
        return look


class WorkerState(object):
    """The same in a worker of a loader, which has its own dataset and collate function. Packed as a tensor to send it to the training."""

    def __init__(self, collate):
        self._collate = collate
        self._known = None
        """Where generators are, as found after the first batch of the worker: a generator that is created lazily exists by then."""

    def __call__(self, dataset):
        import torch

        if self._known is None:
            self._known = self._look(torch, dataset)
        states = self._known.states(again=True)
        if not states:
            return None
        return torch.frombuffer(bytearray(json.dumps(states).encode("ascii")), dtype=torch.uint8)

    def set(self, dataset, packed):
        import torch

        look = self._look(torch, dataset)
        for name, state in json.loads(bytes(packed.tolist()).decode("ascii")).items():
            look.set(name, state)

    def _look(self, torch, dataset):
        look = _Look(torch)
        try:
            look.at({"dataset": dataset, "collate_fn": self._collate})
        except Exception:
            pass
        return look


def mark(state):
    """Return a short hash of a state."""
    return hashlib.blake2b(state.encode("utf-8"), digest_size=8).hexdigest()


class _Look(object):
    def __init__(self, torch):
        self._torch = torch
        self._seen = {}
        self._attributes = {}
        """The attributes of each inspected object, by its path."""
        self._waiting = deque()
        self.things = {}

    def at_loader(self, loader):
        data = self._torch.utils.data
        if not isinstance(loader, data.DataLoader):
            self._put("it", {"it": loader}, "it", 0, order=True)
            self._go()
            return
        held = _attributes_of(loader)
        in_workers = {"dataset", "collate_fn"} if held.get("num_workers") else set()
        for name in in_workers:  # skip them even if a sampler refers to them
            self._seen[id(held.get(name))] = held.get(name)
        names = [name for name in held if name not in NOT_OF_LOADERS and not name.startswith("_DataLoader__")]
        # The dataset first: it is reachable from a sampler too, but does not belong to it.
        for name in sorted(set(names) - in_workers, key=lambda name: (name != "dataset", name)):
            order = isinstance(held[name], data.IterableDataset) or name in ("sampler", "batch_sampler")
            if type(held[name]) not in NUMBERS:
                self._put(name, held, name, 0, order)
                self._go()

    def at(self, roots):
        for name in roots:
            self._put(name, roots, name, 0, order=False)
            self._go()

    def states(self, again=False):
        """Return the state of each value by name. With `again`, read the current values first."""
        found = {}
        for name, thing in self.things.items():
            try:
                if again:
                    thing.value = thing.within[thing.key]
                found[name] = json.dumps(_state_of(self._torch, thing.value))
            except Exception:  # a generator type without readable state
                pass
        return found

    def set(self, name, state):
        try:
            state = json.loads(state)
            thing = self.things.get(name)
            if thing is not None:
                _set(self._torch, thing, state)
                return
            # A generator that its owner creates lazily.
            way, _, key = name.rpartition(".")
            attributes = self._attributes.get(way, {})
            if key in attributes and attributes[key] is None:
                attributes[key] = _made(self._torch, state)
        except Exception:  # its type has changed
            pass

    def _put(self, name, within, key, depth, order):
        self._waiting.append((name, within, key, depth, order))

    def _go(self):
        while self._waiting:
            name, within, key, depth, order = self._waiting.popleft()
            value = within[key]
            kind = type(value)
            if kind in NUMBERS:
                if order and type(within) is dict:
                    self.things[name] = _Thing(within, key, value)
            elif id(value) not in self._seen and len(self._seen) < MAX_LOOKED_AT:
                self._seen[id(value)] = value
                if _is_generator(self._torch, value) or (order and _is_numbers(self._torch, value)):
                    self.things[name] = _Thing(within, key, value)
                elif depth < MAX_DEPTH and not isinstance(value, (self._torch.Tensor, *_OPAQUE)):
                    self._into(name, value, depth + 1, order)

    def _into(self, name, value, depth, order):
        inner = _inside(value)
        if not isinstance(value, _CONTAINERS):
            order = order and (depth == 1 or _gives_an_order(self._torch, value))
            self._attributes[name] = inner
        numbers = order and not type(value).__module__.startswith(TORCHS)
        keys = inner if isinstance(inner, dict) else range(len(inner))
        for key in list(keys):
            if numbers or type(inner[key]) not in NUMBERS:
                self._put("%s.%s" % (name, key), inner, key, depth, order)


def _inside(value):
    """Return what is reachable from a value, as a dictionary or a sequence."""
    if isinstance(value, _CONTAINERS):
        return value if len(value) <= MAX_LOOKED_THROUGH and type(value) in _CONTAINERS else ()
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        cells = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # empty cell
                pass
        return cells
    return _attributes_of(value)


def _attributes_of(value):
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _gives_an_order(torch, value):
    kind = type(value)
    if isinstance(value, torch.utils.data.Sampler):
        return True
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")


# --- kinds ---------------------------------------------------------------------------------------------------------------


def _numpy_random():
    return sys.modules.get("numpy.random")


def _is_generator(torch, value):
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = _numpy_random()
    return numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState, numpy.BitGenerator))


def _is_numbers(torch, value):
    """Return whether a value is a list or array of integers, such as a sample order."""
    if type(value) is list:
        kinds = {*map(type, value)} if len(value) <= MAX_NUMBERS else ()
        if kinds == {list} and sum(map(len, value)) <= MAX_NUMBERS:
            return {kind for one in value for kind in map(type, one)} <= {int}
        return kinds == {int}
    if type(value) is torch.Tensor:
        return value.dtype == torch.int64 and value.is_cpu and value.dim() == 1 and len(value) <= MAX_NUMBERS
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    return value.dtype.kind in "iu" and value.ndim == 1 and len(value) <= MAX_NUMBERS


def _draws(state):
    return not state.startswith(('["number"', '["list"', '["tensor"', '["array"'))


def _state_of(torch, value):
    if type(value) in NUMBERS:
        return ["number", value]
    if type(value) is list:
        return ["list", value]
    if isinstance(value, torch.Tensor):
        return ["tensor", value.tolist()]
    if isinstance(value, torch.Generator):
        return ["torch", str(value.device), _text(bytes(value.get_state().tolist()))]
    if isinstance(value, random.Random):
        return ["python", _text(packed_python(random.Random.getstate(value)))]
    numpy = _numpy_random()
    if isinstance(value, numpy.Generator):
        return ["numpy", _plain(value.bit_generator.state)]
    if isinstance(value, numpy.BitGenerator):
        return ["bits", _plain(value.state)]
    if isinstance(value, numpy.RandomState):
        return ["RandomState", _plain(value.get_state(legacy=False))]
    return ["array", value.tolist()]


def _set(torch, thing, state):
    value, kind = thing.value, state[0]
    if _state_of(torch, value)[0] != kind:
        return
    if kind == "number":
        thing.within[thing.key] = state[1]
    elif kind == "list":
        value[:] = state[1]  # in place: there may be other references to the list
    elif kind in ("tensor", "array"):
        if len(value) == len(state[1]):
            value[:] = torch.tensor(state[1], dtype=torch.int64, device="cpu") if kind == "tensor" else state[1]
    else:
        _set_generator(torch, value, kind, state)


def _set_generator(torch, value, kind, state):
    if kind == "torch":
        raw = bytearray(base64.b64decode(state[2]))
        value.set_state(torch.frombuffer(raw, dtype=torch.uint8).clone())
    elif kind == "python":
        random.Random.setstate(value, unpacked_python(base64.b64decode(state[1])))
    elif kind == "numpy":
        value.bit_generator.state = _filled(state[1])
    elif kind == "bits":
        value.state = _filled(state[1])
    elif kind == "RandomState":
        value.set_state(_filled(state[1]))


def _made(torch, state):
    kind = state[0]
    if kind == "torch":
        made = torch.Generator(device=state[1])
    elif kind == "python":
        made = random.Random()  # noqa: S311 - its state is set below
    elif kind == "numpy":
        numpy = _numpy_random()
        made = numpy.Generator(getattr(numpy, state[1]["bit_generator"])())
    elif kind == "RandomState":
        made = _numpy_random().RandomState()
    else:
        return None
    _set(torch, _Thing(None, None, made), state)
    return made


def _text(raw):
    return base64.b64encode(raw).decode("ascii")


def _plain(state):
    """Return a NumPy generator state with its arrays as lists."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if hasattr(state, "tolist"):
        numbers = state.tolist()
        return {"array": numbers, "of": str(state.dtype)} if isinstance(numbers, list) else numbers
    return state


def _filled(state):
    if not isinstance(state, dict):
        return state
    if set(state) == {"array", "of"}:
        return sys.modules["numpy"].array(state["array"], dtype=state["of"])
    return {name: _filled(value) for name, value in state.items()}
