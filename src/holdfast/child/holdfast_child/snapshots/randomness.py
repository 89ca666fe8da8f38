"""Every source of random numbers that a training draws from, as it stands; and set back to that.

A loader's worker has its own. What it had after a batch travels with that batch, as one tensor: through shared memory, because
the pipe that batches come through is short, and workers that wait on a full one stay behind when their parent is killed.
"""

import random
import struct
import sys

_WORDS = 625
_PYTHON = struct.Struct("<%dI?d" % _WORDS)
_NUMPY = struct.Struct("<624IIid")
_SIZES = struct.Struct("<II?")


def drawn_so_far(torch):
    """The state of all of them."""
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
    """As many of them as there are here: a snapshot may come from a machine with other devices."""
    _set_python(state["python"])
    # As tensors of their own: torch reads a state from where its memory begins, and a view of one crashes.
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        _set_numpy(state["numpy"])
    if "cuda" in state and torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([one.clone() for one in state["cuda"]])
    if "mps" in state and getattr(torch, "mps", None) is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].clone())


def of_worker(torch):
    """What a loader's worker draws from, in one tensor."""
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


def _packed_python():
    _, words, gauss = random.getstate()
    return _PYTHON.pack(*words, gauss is not None, gauss or 0.0)


def _set_python(packed):
    *words, has_gauss, gauss = _PYTHON.unpack(packed)
    random.setstate((3, tuple(words), gauss if has_gauss else None))


def _packed_numpy():
    """Only where the program uses NumPy, and the generator that it uses unasked."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    kind, key, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    return _NUMPY.pack(*key.tolist(), position, has_gauss, gauss) if kind == "MT19937" else None


def _set_numpy(packed):
    import numpy as np

    *key, position, has_gauss, gauss = _NUMPY.unpack(packed)
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
