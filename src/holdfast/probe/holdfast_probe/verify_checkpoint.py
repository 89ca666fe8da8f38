"""Reads checkpoints back and says whether their values are finite, without running any code that is in them.

A checkpoint is a pickle, and a pickle can name any function to be called. Here only what rebuilds tensors is found; all
other names become a stand-in that takes everything and does nothing. An archive of TorchScript holds programs, and old files
are tar archives that are unpacked to a disk: neither is loaded at all. And should something find a way around all this, nothing
is written, started or connected to while a file is read (an audit hook).

The supervisor runs this file's text under the training's own interpreter: it reads the paths from its input, a JSON line each,
and prints a JSON line about each; `loads` is null where it was not read, and `why` says why.
"""

import json
import os
import pickle
import sys
import tarfile

MEMORY_BYTES = 8 << 30
"""Beside what the interpreter has mapped. A small file can describe tensors of any size."""
MEMORY_OF_A_FILE = 4
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "bad_alloc")
MAX_NONFINITE = 8
DEPTH = 24
REBUILDS = {
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_wrapper_subclass",
}
REFUSED = (
    *("ctypes.", "fcntl.", "ftplib.", "os.chmod", "os.chown", "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir"),
    *("os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system"),
    *(
        "os.truncate",
        "os.unsetenv",
        "os.utime",
        "pty.",
        "shutil.",
        "smtplib.",
        "socket.",
        "sqlite3.",
        "subprocess.",
        "urllib.",
    ),
)
"""Audit events, by how they begin, that reading numbers never needs."""
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
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


class NotRead(Exception):
    """Why a file is not read back: nothing is said about whether it loads."""


class Rebuild(object):
    """One of torch's functions that make tensors, and nothing that a pickle could give other attributes or another state."""

    __slots__ = ("_make",)

    def __init__(self, make):
        object.__setattr__(self, "_make", make)

    def __call__(self, *args):
        return self._make(*args)

    def __setattr__(self, name, value):
        raise pickle.UnpicklingError("a function of torch's cannot be given %s" % name)

    def __setstate__(self, state):
        raise pickle.UnpicklingError("a function of torch's cannot be given a state")


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        import torch

        if "." in name:  # a way through a module to whatever it has imported
            return type("StandIn", (StandIn,), {})
        if module == "torch._utils" and name in REBUILDS:
            return Rebuild(super().find_class(module, name))
        known = (
            (module, name) in PLAIN
            or (module in ("torch", "torch.storage") and name.endswith("Storage") and _is_storage(torch, module, name))
            or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))
        )
        if known:
            return super().find_class(module, name)
        return type(str(name), (StandIn,), {})


def _is_storage(torch, module, name):
    return isinstance(getattr(torch if module == "torch" else torch.storage, name, None), type)


def loaded(path):
    """What is in the file. Raises NotRead, and what torch raises."""
    import torch

    if str(path).endswith(".safetensors"):
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

        return load_file(path)
    safe = type(sys)("holdfast_safe_pickle")
    safe.Unpickler, safe.UnpicklingError, safe.load = Unpickler, pickle.UnpicklingError, _load
    options = {"map_location": "cpu", "pickle_module": safe, "weights_only": False}
    with open(path, "rb") as file:
        options["mmap"] = zipped = file.read(4) == b"PK\x03\x04"
    if zipped:
        _look_into_archive(torch, path)
    elif tarfile.is_tarfile(path):
        raise NotRead("a tar archive is unpacked when it loads")
    torch.jit.load = (
        _refuse_programs  # what torch.load hands an archive of TorchScript to, should it see one where we did not
    )
    tarfile.open = _refuse_tar
    return torch.load(path, **options)


def _look_into_archive(torch, path):
    """By torch's own reader: another one may see another list of files."""
    try:
        names = torch._C.PyTorchFileReader(path).get_all_records()
    except AttributeError:
        return
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        raise NotRead("a TorchScript archive runs code when it loads")
    if "data.pkl" not in names:
        raise NotRead("it is an archive that torch.save did not write")


def _refuse_programs(*_, **__):
    raise NotRead("a TorchScript archive runs code when it loads")


def _refuse_tar(*_, **__):
    raise tarfile.ReadError("not opened here")


class Watch(object):
    """An audit hook: while a file is read, only that is done."""

    def __init__(self):
        self.reading = False

    def __call__(self, event, args):
        if not self.reading:
            return
        if event == "open":
            mode, flags = args[1], args[2]
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & OPENED_TO_WRITE
            if not writes:
                return
        elif not event.startswith(REFUSED):
            return
        raise NotRead("loading it would do more than read it (%s)" % event)


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

    nonfinite = []
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
            if floats and len(nonfinite) < MAX_NONFINITE and bool(torch.isnan(tensor).any()):
                nonfinite.append(name[:200])
    if not count:
        raise TypeError("no tensor was found")
    return {"loads": True, "tensors": count, "nonfinite": nonfinite}


def main(lines):
    try:
        import torch  # noqa: F401 - while the training still winds down, so that the paths are not waited for twice
    except ImportError:
        return
    paths = [json.loads(line) for line in lines]
    _limit_memory(paths)
    sys.dont_write_bytecode = True
    watch = Watch()
    sys.addaudithook(watch)
    for path in paths:
        watch.reading = True
        try:
            said = read_back(path)
        except NotRead as refused:
            said = {"loads": None, "why": str(refused)}
        except (ImportError, MemoryError, TypeError, AttributeError):
            continue  # it is our reader that cannot read this: nothing is claimed
        except Exception as error:
            if any(words in str(error) for words in NO_MEMORY):
                continue
            said = {"loads": False, "why": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:300])}
        finally:
            watch.reading = False
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
