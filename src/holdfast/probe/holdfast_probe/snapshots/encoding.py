"""Encodes plain values with tensors in them as JSON text and a list of tensors, and decodes them.

A state consists of numbers, strings, containers and tensors. Anything else has no meaning outside of its process and is
rejected with its location: no code is ever stored, so none is ever run.

The text is built while the training waits, and directly as text: passing thousands of small lists to a JSON encoder
would trigger Python's garbage collector to scan the whole process, which takes ten times as long as a snapshot.
"""

import base64
import json
from collections import Counter, OrderedDict, defaultdict, deque
from json.encoder import encode_basestring_ascii as quote

FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str, "bool": bool}
SEQUENCES = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_NAMES = {kind: name for kinds in (SEQUENCES, MAPPINGS) for name, kind in kinds.items()}
PLAIN_TYPES = frozenset((bool, int, float, str))
MAX_PATTERNS = 256


class UnsupportedValue(TypeError):
    """Something in a state cannot be saved; the message states what and where it is."""


class _Unsupported(Exception):
    def __init__(self, value, why):
        super().__init__(why)
        self.value = value


def flatten(torch, value, tensors, patterns=None):
    """Return `value` as text. Tensors are appended to the list, and the text refers to them by index. `patterns` caches
    templates that speed up encoding the next similar state.
    """
    try:
        text = _Flattener(torch, tensors, {} if patterns is None else patterns).encode(value)
        _check_strided(torch, tensors)
        return text
    except _Unsupported as unsupported:
        raise UnsupportedValue(
            "%s is %s" % (find_path(unsupported.value, value) or "a part of the state", unsupported)
        ) from None
    except RecursionError:
        raise UnsupportedValue("the state is nested too deeply") from None


def _check_strided(torch, tensors):
    flags = {tensor.is_meta for tensor in tensors} | {tensor.is_quantized for tensor in tensors}
    if True in flags or {tensor.layout for tensor in tensors} - {torch.strided}:
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
                raise _Unsupported(tensor, "a tensor that is not stored as plain strided data (%s)" % tensor.layout)


class _Flattener(object):
    def __init__(self, torch, tensors, patterns):
        self._torch = torch
        self._tensor_types = frozenset((torch.Tensor, torch.nn.Parameter))
        self._tensors = tensors
        self._patterns = patterns
        """Text templates of mappings that contain only tensors, by their keys: most of a state is such mappings."""
        self._indices = {}
        """Index of each tensor by its id: tied weights have several names, and are stored once."""

    def encode(self, value):
        kind = type(value)
        if kind in self._tensor_types:
            return self._encode_tensor(value)
        if kind is str:
            return quote(value)
        if kind is int or (kind is float and value - value == 0.0):
            return repr(value)
        if value is None or kind in PLAIN_TYPES:
            return json.dumps(value)
        name = _NAMES.get(kind)
        if name in MAPPINGS:
            return '["%s",%s]' % (name, self._encode_mapping(value))
        if name in SEQUENCES:
            return '["%s",%s]' % (name, self._encode_sequence(value))
        if isinstance(value, self._torch.Tensor):
            return self._encode_tensor(value)
        return self._encode_rare(value, kind)

    def _encode_sequence(self, values):
        if {*map(type, values)} == {int}:
            return "[%s]" % ",".join(map(repr, values))
        return "[%s]" % ",".join([self.encode(item) for item in values])

    def _encode_mapping(self, value):
        encode = self.encode
        if self._tensor_types.issuperset(map(type, value.values())) and {*map(type, value)} == {str}:
            return self._get_pattern((*value,)) % self._assign_indices(value.values())
        pairs = [
            "[%s,%s]" % (quote(key) if type(key) is str else encode(key), encode(item)) for key, item in value.items()
        ]
        return "[%s]" % ",".join(pairs)

    def _get_pattern(self, names):
        pattern = self._patterns.get(names)
        if pattern is None:
            if len(self._patterns) >= MAX_PATTERNS:
                self._patterns.clear()
            pairs = ['[%s,["tensor",%%d]]' % quote(name).replace("%", "%%") for name in names]
            pattern = self._patterns[names] = "[%s]" % ",".join(pairs)
        return pattern

    def _assign_indices(self, tensors):
        ids = [*map(id, tensors)]
        if len({*ids}) != len(ids) or not self._indices.keys().isdisjoint(ids):
            return tuple([self._assign_index(tensor) for tensor in tensors])
        indices = (*range(len(self._tensors), len(self._tensors) + len(ids)),)
        self._tensors.extend(tensors)
        self._indices.update(zip(ids, indices))
        return indices

    def _assign_index(self, tensor):
        index = self._indices.get(id(tensor))
        if index is None:
            index = self._indices[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return index

    def _encode_tensor(self, value):
        return '["tensor",%d]' % self._assign_index(value)

    def _encode_rare(self, value, kind):
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
            return '["deque",[%s,%s]]' % (json.dumps(value.maxlen), self._encode_sequence(value))
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            if value.default_factory is None or FACTORIES.get(factory) is value.default_factory:
                return '["defaultdict",[%s,%s]]' % (json.dumps(factory), self._encode_mapping(value))
        if kind.__module__ == "numpy":
            return json.dumps(_encode_numpy(value))
        raise _Unsupported(
            value,
            "%s.%s: only numbers, strings, containers and tensors can be saved" % (kind.__module__, kind.__qualname__),
        )


def _encode_numpy(value):
    """Encode a numeric array or scalar. Only a process that has imported NumPy has any."""
    import numpy as np

    dtype = getattr(value, "dtype", None)
    if dtype is None or dtype.hasobject or dtype.fields is not None or not dtype.itemsize:
        raise _Unsupported(value, "a NumPy value that is not numeric")
    if not isinstance(value, np.generic) and type(value) not in (np.ndarray, np.memmap):
        raise _Unsupported(value, "a NumPy %s: only plain arrays can be saved" % type(value).__name__)
    raw = base64.b64encode(value.tobytes()).decode("ascii")
    shape = None if isinstance(value, np.generic) else list(value.shape)
    return ["numpy", [dtype.str, shape, raw]]


def find_path(target, root):
    """Return the location of an object in a state, such as `['optimizer']['state'][3]`."""
    stack = [("", root)]
    while stack:
        path, value = stack.pop()
        if value is target:
            return path
        if isinstance(value, dict):
            stack.extend(("%s[%r]" % (path, key), item) for key, item in value.items())
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            stack.extend(("%s[%d]" % (path, n), item) for n, item in enumerate(value))
    return None


def unflatten(torch, encoded, tensors):
    """Decode the parsed JSON text of `flatten`. Raise on anything that it did not write."""
    if encoded is None or isinstance(encoded, (bool, int, float, str)):
        return encoded
    if not isinstance(encoded, list) or len(encoded) != 2:
        raise ValueError("not a snapshot value: %.80r" % (encoded,))
    name, inner = encoded
    if name == "tensor":
        return tensors[inner]
    if name in SEQUENCES:
        return SEQUENCES[name]([unflatten(torch, item, tensors) for item in inner])
    if name in MAPPINGS:
        return _fill(torch, MAPPINGS[name](), inner, tensors)
    return _unflatten_rare(torch, name, inner, tensors)


def _fill(torch, mapping, items, tensors):
    for key, item in items:
        mapping[unflatten(torch, key, tensors)] = unflatten(torch, item, tensors)
    return mapping


def _unflatten_rare(torch, name, inner, tensors):
    if name == "bytes":
        return base64.b64decode(inner)
    if name == "complex":
        return complex(*inner)
    if name == "size":
        return torch.Size(inner)
    if name == "dtype":
        return get_dtype(torch, inner)
    if name == "device":
        return torch.device(inner)
    if name == "deque":
        return deque((unflatten(torch, item, tensors) for item in inner[1]), inner[0])
    if name == "defaultdict":
        factory = FACTORIES[inner[0]] if inner[0] is not None else None
        return _fill(torch, defaultdict(factory), inner[1], tensors)
    if name == "numpy":
        return _decode_numpy(*inner)
    raise ValueError("not a snapshot value: %.80r" % name)


def _decode_numpy(dtype, shape, raw):
    import numpy as np

    values = np.frombuffer(base64.b64decode(raw), dtype=np.dtype(dtype))
    return values[0] if shape is None else values.reshape(shape).copy()


def get_dtype(torch, name):
    """Return a dtype by its name, such as `torch.float32`. Raise TypeError for anything else."""
    dtype = getattr(torch, str(name).rpartition(".")[2], None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError("not a dtype: %.80r" % name)
    return dtype
