"""All random states that a training draws from: reads and restores them.

A DataLoader worker has its own. The state after a batch travels with that batch, as one tensor in shared memory: the pipe for batches
is small, and workers that wait on a full pipe remain when their parent is killed.
"""

import random
import struct
import sys

_WORDS = 625
_PYTHON = struct.Struct("<%dI?d" % _WORDS)
_NUMPY = struct.Struct("<624IIid")
_SIZES = struct.Struct("<II?")


def drawn_so_far(torch):
    """Return the state of all random number generators."""
    state = {"python": _packed_python(), "torch": torch.get_rng_state()}
    numpy_state = _packed_numpy()
    if numpy_state is not None:
        state["numpy"] = numpy_state
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    mps = getattr(torch, "mps", None)
    if mps is not None and torch.backends.mps.is_available():
        state["mps"] = mps.get_rng_state()
    return state


def draw_on_from(torch, state):
    """Restore those that exist here: a snapshot may come from a machine with other devices."""
    _set_python(state["python"])
    # Clone: torch reads a state from the start of the storage, and a view crashes.
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        _set_numpy(state["numpy"])
    if "cuda" in state and torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([one.clone() for one in state["cuda"]])
    if "mps" in state and getattr(torch, "mps", None) is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].clone())


def of_worker(torch):
    """Return the random state of a DataLoader worker as one tensor."""
    numpy_state = _packed_numpy()
    of_torch = torch.get_rng_state()
    packed = bytearray(_SIZES.pack(_PYTHON.size, of_torch.numel(), numpy_state is not None))
    packed += _packed_python()
    packed += numpy_state or b""
    return torch.cat((torch.frombuffer(packed, dtype=torch.uint8), of_torch))


def set_in_worker(torch, packed):
    data = bytes(packed.tolist())
    python, of_torch, has_numpy = _SIZES.unpack_from(data)
    at = _SIZES.size
    _set_python(data[at : at + python])
    if has_numpy:
        _set_numpy(data[at + python : at + python + _NUMPY.size])
    torch.set_rng_state(packed[-of_torch:].clone())


def sources(torch):
    """Return the state of each CPU generator of the process, in a form to compare; `packed_source` packs one to save it."""
    found = {"python": random.getstate(), "torch": torch.get_rng_state()}
    of_numpy = _numpy_state()
    if of_numpy is not None:
        found["numpy"] = of_numpy
    return found


def same_source(torch, name, one, other):
    if name == "torch":
        return torch.equal(one, other)
    if name == "numpy":
        return one[2:] == other[2:] and one[1].tobytes() == other[1].tobytes()
    return one == other


def packed_source(name, state):
    if name == "torch":
        return bytes(state.tolist())
    return packed_python(state) if name == "python" else _pack_numpy(state)


def set_source(torch, name, packed):
    if name == "torch":
        torch.set_rng_state(torch.frombuffer(bytearray(packed), dtype=torch.uint8).clone())
    elif name == "python":
        _set_python(packed)
    elif name == "numpy":
        _set_numpy(packed)


def packed_python(state):
    """Pack a state returned by `random.Random.getstate`."""
    _, words, gauss = state
    return _PYTHON.pack(*words, gauss is not None, gauss or 0.0)


def unpacked_python(packed):
    *words, has_gauss, gauss = _PYTHON.unpack(packed)
    return 3, tuple(words), gauss if has_gauss else None


def _packed_python():
    return packed_python(random.getstate())


def _set_python(packed):
    random.setstate(unpacked_python(packed))


def _numpy_state():
    """Return the state of NumPy's global generator, if the program uses NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    state = numpy.random.get_state(legacy=True)
    return state if state[0] == "MT19937" else None


def _packed_numpy():
    state = _numpy_state()
    return None if state is None else _pack_numpy(state)


def _pack_numpy(state):
    _, key, position, has_gauss, gauss = state
    return _NUMPY.pack(*key.tolist(), position, has_gauss, gauss)


def _set_numpy(packed):
    import numpy as np

    *key, position, has_gauss, gauss = _NUMPY.unpack(packed)
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
