"""Reads checkpoints back and says whether their values are finite, without running any code that is in them.

A checkpoint is a pickle, and a pickle can name any function to be called. Here only what rebuilds tensors is found; all
other names become a stand-in that takes everything and does nothing. The supervisor runs this file's text under the
training's own interpreter: it reads the paths from its input, a JSON line each, and prints a JSON line about each.
"""

import json
import os
import pickle
import sys

MEMORY_BYTES = 8 << 30
"""Beside what the interpreter has mapped. A small file can describe tensors of any size."""
MEMORY_OF_A_FILE = 4
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "bad_alloc")
BAD_AT_MOST = 8
DEPTH = 24
REBUILDS = {
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_wrapper_subclass",
}
PLAIN = {("collections", "OrderedDict"), ("torch", "Size"), ("torch", "device")}


class StandIn(dict):  # type: ignore[type-arg]
    """In the place of whatever a pickle names: it can be made, called, filled and given a state, and does nothing."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may stand in for the key of a dictionary

    def __init__(self, *_args, **_named):
        super().__init__()

    def __eq__(self, other):
        return self is other

    def __call__(self, *_args, **_named):
        return StandIn()

    def __setstate__(self, state):
        self["state"] = state

    def append(self, item):
        self[len(self)] = item

    def extend(self, items):
        for item in items:
            self.append(item)

    add = append


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        import torch

        known = (
            (module == "torch._utils" and name in REBUILDS)
            or (module, name) in PLAIN
            or (module in ("torch", "torch.storage") and name.endswith("Storage"))
            or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))
        )
        if known:
            return super().find_class(module, name)
        return type(str(name), (StandIn,), {})


def loaded(path):
    import torch

    if str(path).endswith(".safetensors"):
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

        return load_file(path)
    safe = type(sys)("holdfast_safe_pickle")
    safe.Unpickler, safe.UnpicklingError, safe.load = Unpickler, pickle.UnpicklingError, _load
    options = {"map_location": "cpu", "pickle_module": safe, "weights_only": False}
    with open(path, "rb") as file:
        options["mmap"] = file.read(4) == b"PK\x03\x04"
    return torch.load(path, **options)


def _load(file, **named):
    return Unpickler(file, **named).load()


def tensors_in(thing, name="", depth=DEPTH):
    """(name, tensor) for every tensor inside."""
    import torch

    if isinstance(thing, torch.Tensor):
        yield name, thing
    elif depth and isinstance(thing, dict):
        for key, value in thing.items():
            inner = (
                name if key in ("state", "_parameters", "_buffers", "_modules") else name + "." * bool(name) + str(key)
            )
            for found in tensors_in(value, inner, depth - 1):
                yield found
    elif depth and isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            for found in tensors_in(value, "%s[%d]" % (name, index), depth - 1):
                yield found


def read_back(path):
    import torch

    bad = []
    count = 0
    with torch.no_grad():
        for name, tensor in tensors_in(loaded(path)):
            count += 1
            if (
                tensor.layout is torch.strided
                and tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()
            ):
                raise MemoryError("%s is larger than its storage" % name[:200])
            floats = tensor.is_floating_point() or tensor.is_complex()
            # Infinity has its uses (masks, a best loss so far); NaN has none.
            if floats and len(bad) < BAD_AT_MOST and bool(torch.isnan(tensor).any()):
                bad.append(name[:200])
    if not count:
        raise TypeError("no tensor was found")
    return {"loads": True, "tensors": count, "bad": bad}


def main(lines):
    try:
        import torch  # noqa: F401 - while the training still winds down, so that the paths are not waited for twice
    except ImportError:
        return
    paths = [json.loads(line) for line in lines]
    _limit_memory(paths)
    for path in paths:
        try:
            said = read_back(path)
        except (ImportError, MemoryError, TypeError, AttributeError):
            continue  # it is our reader that cannot read this: nothing is claimed
        except Exception as error:
            if any(words in str(error) for words in NO_MEMORY):
                continue
            said = {"loads": False, "why": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:300])}
        print(json.dumps(dict(said, path=path)), flush=True)


def _limit_memory(paths):
    try:
        import resource

        size = sum(os.path.getsize(path) for path in paths)
        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES + MEMORY_OF_A_FILE * size,) * 2)
    except (ImportError, OSError, ValueError):
        pass  # a system that has no such limit, or a lower one


if __name__ == "__main__":
    main(sys.stdin)
    sys.stdout.flush()
    os._exit(0)  # taking torch down takes longer than all of the above
