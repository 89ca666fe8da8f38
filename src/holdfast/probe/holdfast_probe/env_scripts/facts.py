"""Facts about this interpreter: versions, devices, torchvision operators, and the OpenMP runtimes that are loaded.

Checks that cannot crash come first, and each one that might is announced before it is tried. The first argument names
the packages whose versions matter, separated by commas; the others name libraries that the training uses in the same
process as torch.
"""

import json
import os
import platform
import sys

LISTED = ("mps", "cuda")
"""The kinds of accelerators that are listed if torch sees them."""
RUNTIMES = ("libomp", "libiomp5", "libgomp")


def emit(fact, **values):
    print(json.dumps(dict(values, fact=fact)), flush=True)


def get_versions(packages):
    try:
        from importlib import metadata
    except ImportError:  # before Python 3.8
        return {}
    found = {}
    for name in packages:
        try:
            found[name] = str(metadata.version(name))
        except Exception:
            pass
    return found


def get_chip():
    """Return the name of the chip on a Mac, such as "Apple M2 Pro"."""
    if sys.platform != "darwin":
        return None
    import subprocess

    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, timeout=5, check=False).stdout.decode().strip() or None
    except Exception:
        return None


def format_error(error):
    text = str(error).strip().split("\n")[0][:400]
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def list_devices(torch, kind):
    """Return the devices of a kind that torch sees, with their product names if torch knows them."""
    module = getattr(torch.backends if kind == "mps" else torch, kind, None)
    if module is None or not module.is_available():
        return {}
    if kind == "mps":
        return {kind: None}
    return {"%s:%d" % (kind, index): module.get_device_name(index) for index in range(module.device_count())}


def check_torch():
    import torch

    names = {}
    errors = {}
    for kind in LISTED:
        try:
            names.update(list_devices(torch, kind))
        except Exception as error:
            errors[kind] = format_error(error)
    mps = getattr(torch.backends, "mps", None)
    numpy_error = None
    try:
        torch.zeros(1).numpy()
    except Exception as error:
        numpy_error = format_error(error)
    emit(
        "torch",
        version=str(torch.__version__),
        cuda_build=torch.version.cuda or getattr(torch.version, "hip", None),
        mps_built=bool(mps is not None and mps.is_built()),
        devices=[*names, "cpu"],
        names={device: name for device, name in names.items() if name},
        cuda_error=errors.get("cuda"),
        numpy_error=numpy_error,
        threads=torch.get_num_threads(),
    )


def check_torchvision():
    """Import torchvision and call one of its compiled operators.

    The import loads them, but a missing one fails only when it is called.
    """
    import torch

    try:
        import torchvision  # type: ignore[import-untyped,import-not-found,unused-ignore]

        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
        kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
        emit("torchvision", version=str(torchvision.__version__), error=None if kept == [0, 2] else "wrong: %r" % kept)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            emit("torchvision", version=None, error=format_error(error))
    except Exception as error:
        emit("torchvision", version=None, error=format_error(error))


def list_loaded_files():
    """Yield the paths of the shared libraries in this process."""
    if sys.platform == "darwin":
        import ctypes

        system = ctypes.CDLL(None)
        system._dyld_get_image_name.restype = ctypes.c_char_p
        for index in range(system._dyld_image_count()):
            yield os.fsdecode(system._dyld_get_image_name(index) or b"")
    else:
        with open("/proc/self/maps", "rb") as maps:
            for line in maps:
                fields = line.split(None, 5)
                if len(fields) == 6:
                    yield os.fsdecode(fields[5].strip())


def check_openmp(after):
    found = set()
    for path in list_loaded_files():
        name = os.path.basename(path).replace("-", ".").split(".")[0]
        if name in RUNTIMES:
            found.add(os.path.realpath(path))
    emit("openmp", after=after, files=sorted(found))


def run_with_torch(name):
    """Import a library and, if it is a known one, use it once between two torch operations."""
    import torch

    library = __import__(name)
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))
    if name == "faiss":
        import numpy as np

        vectors = np.random.default_rng(0).random((4096, 32), dtype=np.float32)
        index = library.IndexFlatL2(32)
        index.add(vectors)
        index.search(vectors[:512], 4)
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))


def attempt(what, function, *arguments):
    emit("trying", what=what)
    try:
        function(*arguments)
        return True
    except Exception as error:
        emit("failed", what=what, error=format_error(error))
        return False


def main(packages, libraries):
    sys.path[:] = [entry for entry in sys.path if entry]  # do not import a torch.py from the working directory
    emit(
        "python",
        executable=sys.executable,
        python=platform.python_version(),
        platform=platform.platform(),
        macos=platform.mac_ver()[0] or None,
        machine=platform.machine(),
        chip=get_chip(),
        packages=get_versions(packages),
    )
    if not attempt("torch", check_torch):
        return
    attempt("torchvision", check_torchvision)
    attempt("OpenMP", check_openmp, "torch")
    for name in libraries:
        if attempt(name, run_with_torch, name):
            attempt("OpenMP", check_openmp, name)
    emit("done")


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
