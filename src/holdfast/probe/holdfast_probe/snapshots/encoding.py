"""Encodes plain values with tensors in them as JSON text and a list of tensors, and decodes them.

A state consists of numbers, strings, containers and tensors. Anything else has no meaning outside of its process and is rejected with
its location: no code is ever stored, so none is ever run.

The text is built while the training waits, and directly as text: passing thousands of small lists to a JSON encoder would trigger
Python's garbage collector to scan the whole process, which takes ten times as long as a snapshot.
"""

import base64
import json
from collections import Counter, OrderedDict, defaultdict, deque
from json.encoder import encode_basestring_ascii as quoted

FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str, "bool": bool}
SEQUENCES = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_NAMES = {kind: name for kinds in (SEQUENCES, MAPPINGS) for name, kind in kinds.items()}
PLAIN = frozenset((bool, int, float, str))
MAX_PATTERNS = 256


class NotPlain(TypeError):
    """Something in a state cannot be saved; the message states what and where it is."""


class _Refused(Exception):
    def __init__(self, value, why):
        super().__init__(why)
        self.value = value


def flatten(torch, value, tensors, patterns=None):
    """Return `value` as text. Tensors are appended to the list, and the text refers to them by index. `patterns` caches templates that
    speed up encoding the next similar state.
    """
    try:
        text = _Flatten(torch, tensors, {} if patterns is None else patterns).of(value)
        _check_plain(torch, tensors)
        return text
    except _Refused as refused:
        raise NotPlain("%s is %s" % (place_of(refused.value, value) or "a part of the state", refused)) from None
    except RecursionError:
        raise NotPlain("the state is nested too deeply") from None


def _check_plain(torch, tensors):
    odd = {tensor.is_meta for tensor in tensors} | {tensor.is_quantized for tensor in tensors}
    if True in odd or {tensor.layout for tensor in tensors} - {torch.strided}:
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
                raise _Refused(tensor, "a tensor that is not stored as plain strided data (%s)" % tensor.layout)


class _Flatten(object):
    def __init__(self, torch, tensors, patterns):
        self._torch = torch
        self._tensor_types = frozenset((torch.Tensor, torch.nn.Parameter))
        self._tensors = tensors
        self._patterns = patterns
        """Text templates of mappings that contain only tensors, by their keys: most of a state is such mappings."""
        self._places = {}
        """Index of each tensor by its id: tied weights have several names, and are stored once."""

    def of(self, value):
        kind = type(value)
        if kind in self._tensor_types:
            return self._tensor(value)
        if kind is str:
            return quoted(value)
        if kind is int or (kind is float and value - value == 0.0):
            return repr(value)
        if value is None or kind in PLAIN:
            return json.dumps(value)
        name = _NAMES.get(kind)
        if name in MAPPINGS:
            return '["%s",%s]' % (name, self._items(value))
        if name in SEQUENCES:
            return '["%s",%s]' % (name, self._several(value))
        if isinstance(value, self._torch.Tensor):
            return self._tensor(value)
        return self._seldom(value, kind)

    def _several(self, values):
        if {*map(type, values)} == {int}:
            return "[%s]" % ",".join(map(repr, values))
        return "[%s]" % ",".join([self.of(item) for item in values])

    def _items(self, value):
        of = self.of
        if self._tensor_types.issuperset(map(type, value.values())) and {*map(type, value)} == {str}:
            return self._pattern_of((*value,)) % self._numbers_of(value.values())
        pairs = ["[%s,%s]" % (quoted(key) if type(key) is str else of(key), of(item)) for key, item in value.items()]
        return "[%s]" % ",".join(pairs)

    def _pattern_of(self, names):
        pattern = self._patterns.get(names)
        if pattern is None:
            if len(self._patterns) >= MAX_PATTERNS:
                self._patterns.clear()
            pairs = ['[%s,["tensor",%%d]]' % quoted(name).replace("%", "%%") for name in names]
            pattern = self._patterns[names] = "[%s]" % ",".join(pairs)
        return pattern

    def _numbers_of(self, tensors):
        ids = [*map(id, tensors)]
        if len({*ids}) != len(ids) or not self._places.keys().isdisjoint(ids):
            return tuple([self._number_of(tensor) for tensor in tensors])
        numbers = (*range(len(self._tensors), len(self._tensors) + len(ids)),)
        self._tensors.extend(tensors)
        self._places.update(zip(ids, numbers))
        return numbers

    def _number_of(self, tensor):
        number = self._places.get(id(tensor))
        if number is None:
            number = self._places[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return number

    def _tensor(self, value):
        return '["tensor",%d]' % self._number_of(value)

    def _seldom(self, value, kind):
        torch = self._torch
        if kind is bytes or kind is bytearray:
            return '["bytes","%s"]' % base64.b64encode(value).decode("ascii")
        if kind is complex:
            return json.dumps(["complex", [value.real, value.imag]])
        if kind is torch.Size:
            return json.dumps(["size", list(value)])
        if isinstance(value, torch.dtype):
            return '["dtype","%s"]' % value
        if isinstance(value, torch.device):
            return '["device","%s"]' % value
        if kind is deque:
            return '["deque",[%s,%s]]' % (json.dumps(value.maxlen), self._several(value))
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            if value.default_factory is None or FACTORIES.get(factory) is value.default_factory:
                return '["defaultdict",[%s,%s]]' % (json.dumps(factory), self._items(value))
        if kind.__module__ == "numpy":
            return json.dumps(_of_numpy(value))
        raise _Refused(
            value,
            "%s.%s: only numbers, strings, containers and tensors can be saved" % (kind.__module__, kind.__qualname__),
        )


def _of_numpy(value):
    """Encode a numeric array or scalar. Only a process that has imported NumPy has any."""
    import numpy as np

    dtype = getattr(value, "dtype", None)
    if dtype is None or dtype.hasobject or dtype.fields is not None or not dtype.itemsize:
        raise _Refused(value, "a NumPy value that is not numeric")
    if not isinstance(value, np.generic) and type(value) not in (np.ndarray, np.memmap):
        raise _Refused(value, "a NumPy %s: only plain arrays can be saved" % type(value).__name__)
    raw = base64.b64encode(value.tobytes()).decode("ascii")
    shape = None if isinstance(value, np.generic) else list(value.shape)
    return ["numpy", [dtype.str, shape, raw]]


def place_of(wanted, within):
    """Return the location of an object in a state, such as `['optimizer']['state'][3]`."""
    waiting = [("", within)]
    while waiting:
        place, value = waiting.pop()
        if value is wanted:
            return place
        if isinstance(value, dict):
            waiting.extend(("%s[%r]" % (place, key), item) for key, item in value.items())
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            waiting.extend(("%s[%d]" % (place, n), item) for n, item in enumerate(value))
    return None


def unflatten(torch, kept, tensors):
    """Decode the parsed JSON text of `flatten`. Raise on anything that it did not write."""
    if kept is None or isinstance(kept, (bool, int, float, str)):
        return kept
    if not isinstance(kept, list) or len(kept) != 2:
        raise ValueError("not a snapshot value: %.80r" % (kept,))
    name, inner = kept
    if name == "tensor":
        return tensors[inner]
    if name in SEQUENCES:
        return SEQUENCES[name]([unflatten(torch, item, tensors) for item in inner])
    if name in MAPPINGS:
        return _filled(torch, MAPPINGS[name](), inner, tensors)
    return _unflatten_seldom(torch, name, inner, tensors)


def _filled(torch, mapping, items, tensors):
    for key, item in items:
        mapping[unflatten(torch, key, tensors)] = unflatten(torch, item, tensors)
    return mapping


def _unflatten_seldom(torch, name, inner, tensors):
    if name == "bytes":
        return base64.b64decode(inner)
    if name == "complex":
        return complex(*inner)
    if name == "size":
        return torch.Size(inner)
    if name == "dtype":
        return dtype_called(torch, inner)
    if name == "device":
        return torch.device(inner)
    if name == "deque":
        return deque((unflatten(torch, item, tensors) for item in inner[1]), inner[0])
    if name == "defaultdict":
        factory = FACTORIES[inner[0]] if inner[0] is not None else None
        return _filled(torch, defaultdict(factory), inner[1], tensors)
    if name == "numpy":
        return _numpy_of(*inner)
    raise ValueError("not a snapshot value: %.80r" % name)


def _numpy_of(dtype, shape, raw):
    import numpy as np

    values = np.frombuffer(base64.b64decode(raw), dtype=np.dtype(dtype))
    return values[0] if shape is None else values.reshape(shape).copy()


def dtype_called(torch, name):
    """Return a dtype by its name, such as `torch.float32`. Raise TypeError for anything else."""
    dtype = getattr(torch, str(name).rpartition(".")[2], None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError("not a dtype: %.80r" % name)
    return dtype
