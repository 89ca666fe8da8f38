"""Reads checkpoints back and reports whether their values are finite, without running any code from them.

A checkpoint is a pickle, and a pickle can call any function. Here only the functions that rebuild tensors can be found.
All other names become a stand-in that accepts everything and does nothing. A TorchScript archive contains programs, and
old files are tar archives that are unpacked to disk: neither is loaded at all. If something gets around all this, an
audit hook still prevents it from writing files, starting processes or opening connections while a file is read.

The supervisor runs this file's text with the training's own interpreter. It reads the paths from its input, one JSON
line each, and prints one JSON line about each. `loads` is null if the file was not read, and `why` gives the reason.
"""

import json
import os
import pickle
import sys
import tarfile

MEMORY_BYTES = 8 << 30
"""Limit in addition to what the interpreter has mapped. A small file can describe tensors of any size."""
MEMORY_PER_FILE_BYTE = 4
OUT_OF_MEMORY = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "bad_alloc")
MAX_NONFINITE = 8
MAX_DEPTH = 24
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
    *("os.truncate", "os.unsetenv", "os.utime", "pty.", "shutil.", "smtplib.", "socket.", "sqlite3.", "subprocess."),
    "urllib.",
)
"""Prefixes of audit events that reading numbers never needs."""
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
PLAIN = {("collections", "OrderedDict"), ("torch", "Size"), ("torch", "device")}


class StandIn(dict):  # type: ignore[type-arg]
    """Replaces whatever a pickle names. It can be created, called, filled and given a state, and does nothing."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be the key of a dictionary

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
    """A file is not read back, so it is unknown whether it loads. The message gives the reason."""


class Rebuild(object):
    """One of torch's functions that build tensors, wrapped so that a pickle cannot set its attributes or its state."""

    __slots__ = ("_make",)

    def __init__(self, make):
        object.__setattr__(self, "_make", make)

    def __call__(self, *args):
        return self._make(*args)

    def __setattr__(self, name, value):
        raise pickle.UnpicklingError("the checkpoint sets the attribute %s of a torch function" % name)

    def __setstate__(self, state):
        raise pickle.UnpicklingError("the checkpoint sets the state of a torch function")


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        import torch

        if "." in name:  # it could reach anything that the module has imported
            return type("StandIn", (StandIn,), {})
        if module == "torch._utils" and name in REBUILDS:
            return Rebuild(super().find_class(module, name))
        is_allowed = (
            (module, name) in PLAIN
            or (module in ("torch", "torch.storage") and name.endswith("Storage") and _is_storage(torch, module, name))
            or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))
        )
        if is_allowed:
            return super().find_class(module, name)
        return type(str(name), (StandIn,), {})


def _is_storage(torch, module, name):
    return isinstance(getattr(torch if module == "torch" else torch.storage, name, None), type)


def load_checkpoint(path):
    """Return the content of the file. Raises NotRead, and whatever torch raises."""
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
        _check_archive(torch, path)
    elif tarfile.is_tarfile(path):
        raise NotRead("a tar archive is unpacked when it loads")
    # torch.load calls this if it recognizes a TorchScript archive that was not recognized above.
    torch.jit.load = _refuse_programs
    tarfile.open = _refuse_tar
    return torch.load(path, **options)


def _check_archive(torch, path):
    """Refuse archives that torch.save did not write. Another reader than torch's may see other files."""
    try:
        names = torch._C.PyTorchFileReader(path).get_all_records()
    except AttributeError:
        return
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        raise NotRead("a TorchScript archive runs code when it loads")
    if "data.pkl" not in names:
        raise NotRead("the archive was not written by torch.save")


def _refuse_programs(*_, **__):
    raise NotRead("a TorchScript archive runs code when it loads")


def _refuse_tar(*_, **__):
    raise tarfile.ReadError("not opened here")


class ReadOnlyHook(object):
    """An audit hook that allows nothing but reading while a file is read."""

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
        raise NotRead("loading it would do more than read the file (%s)" % event)


def _load(file, **named):
    return Unpickler(file, **named).load()


def find_tensors(content, name="", depth=MAX_DEPTH):
    """Yield (name, tensor) for every tensor inside."""
    import torch

    if isinstance(content, torch.Tensor):
        yield name, content
    elif depth and isinstance(content, dict):
        for key, value in content.items():
            is_hidden = key in ("state", "_parameters", "_buffers", "_modules")
            yield from find_tensors(value, name if is_hidden else name + "." * bool(name) + str(key), depth - 1)
    elif depth and isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from find_tensors(value, "%s[%d]" % (name, index), depth - 1)


def read_back(path):
    import torch

    nonfinite = []
    count = 0
    with torch.no_grad():
        for name, tensor in find_tensors(load_checkpoint(path)):
            count += 1
            size = tensor.numel() * tensor.element_size()
            if tensor.layout is torch.strided and size > tensor.untyped_storage().nbytes():
                raise MemoryError("%s is larger than its storage" % name[:200])
            floats = tensor.is_floating_point() or tensor.is_complex()
            # Infinity may be intended (masks, a best loss so far), NaN never is.
            if floats and len(nonfinite) < MAX_NONFINITE and bool(torch.isnan(tensor).any()):
                nonfinite.append(name[:200])
    if not count:
        raise TypeError("no tensor was found")
    return {"loads": True, "tensors": count, "nonfinite": nonfinite}


def main(lines):
    try:
        import torch  # noqa: F401 - imported while the training still shuts down, before the paths arrive
    except ImportError:
        return
    paths = [json.loads(line) for line in lines]
    _limit_memory(paths)
    sys.dont_write_bytecode = True
    hook = ReadOnlyHook()
    sys.addaudithook(hook)
    for path in paths:
        hook.reading = True
        try:
            result = read_back(path)
        except NotRead as refused:
            result = {"loads": None, "why": str(refused)}
        except (ImportError, MemoryError, TypeError, AttributeError):
            continue  # this reader cannot read the file, which says nothing about the file itself
        except Exception as error:
            if any(words in str(error) for words in OUT_OF_MEMORY):
                continue
            result = {"loads": False, "why": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:300])}
        finally:
            hook.reading = False
        print(json.dumps(dict(result, path=path)), flush=True)


def _limit_memory(paths):
    try:
        import resource

        size = sum(os.path.getsize(path) for path in paths)
        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES + MEMORY_PER_FILE_BYTE * size,) * 2)
    except (ImportError, OSError, ValueError):
        pass  # this system has no such limit, or a lower one


if __name__ == "__main__":
    main(sys.stdin)
    sys.stdout.flush()
    os._exit(0)  # a normal exit with torch loaded takes longer than everything above
