"""All random states that a training draws from: reads and restores them.

A DataLoader worker has its own. The state after a batch travels with that batch, as one tensor in shared memory: the
pipe for batches is small, and workers that wait on a full pipe remain when their parent is killed.
"""

import random
import struct
import sys

from .. import devices

_WORDS = 625
_PYTHON = struct.Struct("<%dI?d" % _WORDS)
_NUMPY = struct.Struct("<624IIid")
_SIZES = struct.Struct("<II?")


def get_rng_states(torch):
    """Return the state of all random number generators."""
    state = {"python": _get_packed_python(), "torch": torch.get_rng_state()}
    numpy_state = _get_packed_numpy()
    if numpy_state is not None:
        state["numpy"] = numpy_state
    state.update(devices.get_rng_states(torch))
    return state


def set_rng_states(torch, state):
    """Restore those that exist here: a snapshot may come from a machine with other devices."""
    _set_python(state["python"])
    # Clone: torch reads a state from the start of the storage, and a view crashes.
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        _set_numpy(state["numpy"])
    devices.set_rng_states(torch, state)


def get_worker_rng_state(torch):
    """Return the random state of a DataLoader worker as one tensor."""
    numpy_state = _get_packed_numpy()
    torch_state = torch.get_rng_state()
    packed = bytearray(_SIZES.pack(_PYTHON.size, torch_state.numel(), numpy_state is not None))
    packed += _get_packed_python()
    packed += numpy_state or b""
    return torch.cat((torch.frombuffer(packed, dtype=torch.uint8), torch_state))


def set_worker_rng_state(torch, packed):
    data = bytes(packed.tolist())
    python_size, torch_size, has_numpy = _SIZES.unpack_from(data)
    at = _SIZES.size
    _set_python(data[at : at + python_size])
    if has_numpy:
        _set_numpy(data[at + python_size : at + python_size + _NUMPY.size])
    torch.set_rng_state(packed[-torch_size:].clone())


def get_sources(torch):
    """Return the state of each CPU generator, in a form to compare; `pack_source` packs one to save it."""
    states = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy_state = _get_numpy_state()
    if numpy_state is not None:
        states["numpy"] = numpy_state
    return states


def is_same_source(torch, name, one, other):
    if name == "torch":
        return torch.equal(one, other)
    if name == "numpy":
        return one[2:] == other[2:] and one[1].tobytes() == other[1].tobytes()
    return one == other


def pack_source(name, state):
    if name == "torch":
        return bytes(state.tolist())
    return pack_python(state) if name == "python" else _pack_numpy(state)


def set_source(torch, name, packed):
    if name == "torch":
        torch.set_rng_state(torch.frombuffer(bytearray(packed), dtype=torch.uint8).clone())
    elif name == "python":
        _set_python(packed)
    elif name == "numpy":
        _set_numpy(packed)


def pack_python(state):
    """Pack a state returned by `random.Random.getstate`."""
    _, words, gauss = state
    return _PYTHON.pack(*words, gauss is not None, gauss or 0.0)


def unpack_python(packed):
    *words, has_gauss, gauss = _PYTHON.unpack(packed)
    return 3, tuple(words), gauss if has_gauss else None


def _get_packed_python():
    return pack_python(random.getstate())


def _set_python(packed):
    random.setstate(unpack_python(packed))


def _get_numpy_state():
    """Return the state of NumPy's global generator, if the program uses NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    state = numpy.random.get_state(legacy=True)
    return state if state[0] == "MT19937" else None


def _get_packed_numpy():
    state = _get_numpy_state()
    return None if state is None else _pack_numpy(state)


def _pack_numpy(state):
    _, key, position, has_gauss, gauss = state
    return _NUMPY.pack(*key.tolist(), position, has_gauss, gauss)


def _set_numpy(packed):
    import numpy as np

    *key, position, has_gauss, gauss = _NUMPY.unpack(packed)
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
