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

from .rng import pack_python, unpack_python

MAX_OBJECTS = 1000
MAX_DEPTH = 6
MAX_CONTAINER_LENGTH = 64
MAX_LIST_LENGTH = 100_000
"""Maximum length of a list in a sampler: `random.shuffle(self.indices)` derives each order from the previous one."""
PLAIN_TYPES = frozenset((bool, int, float, str))
TORCH_PREFIX = "torch."
"""torch's own samplers store only constructor arguments besides generators."""
SKIPPED_ATTRIBUTES = frozenset(("_iterator", "worker_init_fn", "multiprocessing_context"))
_CONTAINERS = (dict, list, tuple)
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class _Slot(object):
    """`container[key]`: a generator, or a number or list of a sampler."""

    __slots__ = ("container", "key", "value")

    def __init__(self, container, key, value):
        self.container = container
        self.key = key
        self.value = value


class LoaderState(object):
    """The state of one loader: reads and restores it."""

    def __init__(self, torch, loader, first_hashes=None):
        self._torch = torch
        self._loader = loader
        self.first_hashes = {} if first_hashes is None else first_hashes
        """Hashes of the states at first use in the first attempt. Unchanged numbers and lists are not saved."""

    def get_state(self):
        states = self.get_all_states()
        return {
            name: state
            for name, state in states.items()
            if _is_generator_state(state) or self.first_hashes.get(name) != hash_state(state)
        }

    def get_all_states(self):
        return self._walk().get_states()

    def set_state(self, states):
        walk = self._walk()
        for name, state in states.items():
            walk.set_state(name, state)

    def get_generators(self):
        """Return the generators by name."""
        return {name: slot.value for name, slot in self._walk().slots.items() if type(slot.value) not in PLAIN_TYPES}

    def _walk(self):
        walk = _AttributeWalk(self._torch)
        try:
            walk.walk_loader(self._loader)
        except Exception:  # an object that cannot be inspected; keep what was found so far
            pass
        return walk


class WorkerState(object):
    """The same in a worker of a loader, which has its own dataset and collate function. Packed as a tensor to send it
    to the training.
    """

    def __init__(self, collate):
        self._collate = collate
        self._cached_walk = None
        """Where generators are, as found after the first batch of the worker: a generator that is created lazily exists
        by then.
        """

    def __call__(self, dataset):
        import torch

        if self._cached_walk is None:
            self._cached_walk = self._walk(torch, dataset)
        states = self._cached_walk.get_states(refresh=True)
        if not states:
            return None
        return torch.frombuffer(bytearray(json.dumps(states).encode("ascii")), dtype=torch.uint8)

    def set_state(self, dataset, packed):
        import torch

        walk = self._walk(torch, dataset)
        for name, state in json.loads(bytes(packed.tolist()).decode("ascii")).items():
            walk.set_state(name, state)

    def _walk(self, torch, dataset):
        walk = _AttributeWalk(torch)
        try:
            walk.walk_roots({"dataset": dataset, "collate_fn": self._collate})
        except Exception:
            pass
        return walk


def hash_state(state):
    """Return a short hash of a state."""
    return hashlib.blake2b(state.encode("utf-8"), digest_size=8).hexdigest()


class _AttributeWalk(object):
    def __init__(self, torch):
        self._torch = torch
        self._seen = {}
        self._attributes = {}
        """The attributes of each inspected object, by its path."""
        self._queue = deque()
        self.slots = {}

    def walk_loader(self, loader):
        data = self._torch.utils.data
        if not isinstance(loader, data.DataLoader):
            self._push("it", {"it": loader}, "it", 0, is_order=True)
            self._process_queue()
            return
        attributes = _get_attributes(loader)
        in_workers = {"dataset", "collate_fn"} if attributes.get("num_workers") else set()
        for name in in_workers:  # skip them even if a sampler refers to them
            self._seen[id(attributes.get(name))] = attributes.get(name)
        names = [name for name in attributes if name not in SKIPPED_ATTRIBUTES and not name.startswith("_DataLoader__")]
        # The dataset first: it is reachable from a sampler too, but does not belong to it.
        for name in sorted(set(names) - in_workers, key=lambda name: (name != "dataset", name)):
            is_order = isinstance(attributes[name], data.IterableDataset) or name in ("sampler", "batch_sampler")
            if type(attributes[name]) not in PLAIN_TYPES:
                self._push(name, attributes, name, 0, is_order)
                self._process_queue()

    def walk_roots(self, roots):
        for name in roots:
            self._push(name, roots, name, 0, is_order=False)
            self._process_queue()

    def get_states(self, refresh=False):
        """Return the state of each value by name. With `refresh`, read the current values first."""
        found = {}
        for name, slot in self.slots.items():
            try:
                if refresh:
                    slot.value = slot.container[slot.key]
                found[name] = json.dumps(_encode_state(self._torch, slot.value))
            except Exception:  # a generator type without readable state
                pass
        return found

    def set_state(self, name, state):
        try:
            state = json.loads(state)
            slot = self.slots.get(name)
            if slot is not None:
                _restore(self._torch, slot, state)
                return
            # A generator that its owner creates lazily.
            path, _, key = name.rpartition(".")
            attributes = self._attributes.get(path, {})
            if key in attributes and attributes[key] is None:
                attributes[key] = _make_generator(self._torch, state)
        except Exception:  # its type has changed
            pass

    def _push(self, name, container, key, depth, is_order):
        self._queue.append((name, container, key, depth, is_order))

    def _process_queue(self):
        while self._queue:
            name, container, key, depth, is_order = self._queue.popleft()
            value = container[key]
            kind = type(value)
            if kind in PLAIN_TYPES:
                if is_order and type(container) is dict:
                    self.slots[name] = _Slot(container, key, value)
            elif id(value) not in self._seen and len(self._seen) < MAX_OBJECTS:
                self._seen[id(value)] = value
                if _is_generator(self._torch, value) or (is_order and _is_int_list(self._torch, value)):
                    self.slots[name] = _Slot(container, key, value)
                elif depth < MAX_DEPTH and not isinstance(value, (self._torch.Tensor, *_OPAQUE)):
                    self._descend(name, value, depth + 1, is_order)

    def _descend(self, name, value, depth, is_order):
        children = _get_children(value)
        if not isinstance(value, _CONTAINERS):
            is_order = is_order and (depth == 1 or _is_sampler(self._torch, value))
            self._attributes[name] = children
        include_numbers = is_order and not type(value).__module__.startswith(TORCH_PREFIX)
        keys = children if isinstance(children, dict) else range(len(children))
        for key in list(keys):
            if include_numbers or type(children[key]) not in PLAIN_TYPES:
                self._push("%s.%s" % (name, key), children, key, depth, is_order)


def _get_children(value):
    """Return what is reachable from a value, as a dictionary or a sequence."""
    if isinstance(value, _CONTAINERS):
        return value if len(value) <= MAX_CONTAINER_LENGTH and type(value) in _CONTAINERS else ()
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
    return _get_attributes(value)


def _get_attributes(value):
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _is_sampler(torch, value):
    kind = type(value)
    if isinstance(value, torch.utils.data.Sampler):
        return True
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")


# --- types
# ---------------------------------------------------------------------------------------------------------------


def _numpy_random():
    return sys.modules.get("numpy.random")


def _is_generator(torch, value):
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = _numpy_random()
    return numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState, numpy.BitGenerator))


def _is_int_list(torch, value):
    """Return whether a value is a list or array of integers, such as a sample order."""
    if type(value) is list:
        kinds = {*map(type, value)} if len(value) <= MAX_LIST_LENGTH else ()
        if kinds == {list} and sum(map(len, value)) <= MAX_LIST_LENGTH:
            return {kind for inner_list in value for kind in map(type, inner_list)} <= {int}
        return kinds == {int}
    if type(value) is torch.Tensor:
        return value.dtype == torch.int64 and value.is_cpu and value.dim() == 1 and len(value) <= MAX_LIST_LENGTH
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    return value.dtype.kind in "iu" and value.ndim == 1 and len(value) <= MAX_LIST_LENGTH


def _is_generator_state(state):
    return not state.startswith(('["number"', '["list"', '["tensor"', '["array"'))


def _encode_state(torch, value):
    if type(value) in PLAIN_TYPES:
        return ["number", value]
    if type(value) is list:
        return ["list", value]
    if isinstance(value, torch.Tensor):
        return ["tensor", value.tolist()]
    if isinstance(value, torch.Generator):
        return ["torch", str(value.device), _encode_bytes(bytes(value.get_state().tolist()))]
    if isinstance(value, random.Random):
        return ["python", _encode_bytes(pack_python(random.Random.getstate(value)))]
    numpy = _numpy_random()
    if isinstance(value, numpy.Generator):
        return ["numpy", _arrays_to_lists(value.bit_generator.state)]
    if isinstance(value, numpy.BitGenerator):
        return ["bits", _arrays_to_lists(value.state)]
    if isinstance(value, numpy.RandomState):
        return ["RandomState", _arrays_to_lists(value.get_state(legacy=False))]
    return ["array", value.tolist()]


def _restore(torch, slot, state):
    value, kind = slot.value, state[0]
    if _encode_state(torch, value)[0] != kind:
        return
    if kind == "number":
        slot.container[slot.key] = state[1]
    elif kind == "list":
        value[:] = state[1]  # in place: there may be other references to the list
    elif kind in ("tensor", "array"):
        if len(value) == len(state[1]):
            value[:] = torch.tensor(state[1], dtype=torch.int64, device="cpu") if kind == "tensor" else state[1]
    else:
        _restore_generator(torch, value, kind, state)


def _restore_generator(torch, value, kind, state):
    if kind == "torch":
        raw = bytearray(base64.b64decode(state[2]))
        value.set_state(torch.frombuffer(raw, dtype=torch.uint8).clone())
    elif kind == "python":
        random.Random.setstate(value, unpack_python(base64.b64decode(state[1])))
    elif kind == "numpy":
        value.bit_generator.state = _lists_to_arrays(state[1])
    elif kind == "bits":
        value.state = _lists_to_arrays(state[1])
    elif kind == "RandomState":
        value.set_state(_lists_to_arrays(state[1]))


def _make_generator(torch, state):
    kind = state[0]
    if kind == "torch":
        generator = torch.Generator(device=state[1])
    elif kind == "python":
        generator = random.Random()  # noqa: S311 - its state is set below
    elif kind == "numpy":
        numpy = _numpy_random()
        generator = numpy.Generator(getattr(numpy, state[1]["bit_generator"])())
    elif kind == "RandomState":
        generator = _numpy_random().RandomState()
    else:
        return None
    _restore(torch, _Slot(None, None, generator), state)
    return generator


def _encode_bytes(raw):
    return base64.b64encode(raw).decode("ascii")


def _arrays_to_lists(state):
    """Return a NumPy generator state with its arrays as lists."""
    if isinstance(state, dict):
        return {name: _arrays_to_lists(value) for name, value in state.items()}
    if hasattr(state, "tolist"):
        numbers = state.tolist()
        return {"array": numbers, "of": str(state.dtype)} if isinstance(numbers, list) else numbers
    return state


def _lists_to_arrays(state):
    if not isinstance(state, dict):
        return state
    if set(state) == {"array", "of"}:
        return sys.modules["numpy"].array(state["array"], dtype=state["of"])
    return {name: _lists_to_arrays(value) for name, value in state.items()}
