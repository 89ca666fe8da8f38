"""What this interpreter is and has: versions, devices, whether torchvision's operators load, which OpenMP runtimes.

What cannot crash comes first, and each thing that might is announced before it is tried. The arguments name libraries that
the training uses beside torch in one process.
"""

import json
import os
import platform
import sys

PACKAGES = (
    "torch",
    "torchvision",
    "ultralytics",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
    "faiss",
    "scikit-learn",
    "xgboost",
    "lightgbm",
    "opencv-python",
    "opencv-python-headless",
    "pillow",
    "lightning",
    "pytorch-lightning",
    "transformers",
)
RUNTIMES = ("libomp", "libiomp5", "libgomp")


def say(fact, **values):
    print(json.dumps(dict(values, fact=fact)), flush=True)


def versions():
    try:
        from importlib import metadata
    except ImportError:  # before Python 3.8
        return {}
    found = {}
    for name in PACKAGES:
        try:
            found[name] = str(metadata.version(name))
        except Exception:
            pass
    return found


def chip():
    """On a Mac: Apple M2 Pro."""
    if sys.platform != "darwin":
        return None
    import subprocess

    try:
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, timeout=5, check=False).stdout.decode().strip() or None
    except Exception:
        return None


def one_line(error):
    text = str(error).strip().split("\n")[0][:400]
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def about_torch():
    import torch

    devices = []
    names = {}
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        devices.append("mps")
    cuda_error = None
    try:
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                devices.append("cuda:%d" % index)
                names["cuda:%d" % index] = torch.cuda.get_device_name(index)
    except Exception as error:
        cuda_error = one_line(error)
    numpy_error = None
    try:
        torch.zeros(1).numpy()
    except Exception as error:
        numpy_error = one_line(error)
    say(
        "torch",
        version=str(torch.__version__),
        cuda_build=torch.version.cuda or getattr(torch.version, "hip", None),
        mps_built=bool(mps is not None and mps.is_built()),
        devices=[*devices, "cpu"],
        names=names,
        cuda_error=cuda_error,
        numpy_error=numpy_error,
        threads=torch.get_num_threads(),
    )


def about_torchvision():
    """Its compiled operators are loaded by importing it, and missed only when one is called."""
    import torch

    try:
        import torchvision  # type: ignore[import-untyped,import-not-found,unused-ignore]

        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
        kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
        say("torchvision", version=str(torchvision.__version__), error=None if kept == [0, 2] else "wrong: %r" % kept)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            say("torchvision", version=None, error=one_line(error))
    except Exception as error:
        say("torchvision", version=None, error=one_line(error))


def loaded_files():
    """The shared libraries in this process."""
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


def about_openmp(after):
    found = set()
    for path in loaded_files():
        name = os.path.basename(path).replace("-", ".").split(".")[0]
        if name in RUNTIMES:
            found.add(os.path.realpath(path))
    say("openmp", after=after, files=sorted(found))


def beside_torch(name):
    """Imports a library and, where it is known how, lets it work once between two works of torch."""
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
    say("trying", what=what)
    try:
        function(*arguments)
        return True
    except Exception as error:
        say("failed", what=what, error=one_line(error))
        return False


def main(beside):
    sys.path[:] = [entry for entry in sys.path if entry]  # a torch.py in this folder is not torch
    say(
        "python",
        executable=sys.executable,
        python=platform.python_version(),
        platform=platform.platform(),
        macos=platform.mac_ver()[0] or None,
        machine=platform.machine(),
        chip=chip(),
        packages=versions(),
    )
    if not attempt("torch", about_torch):
        return
    attempt("torchvision", about_torchvision)
    attempt("OpenMP", about_openmp, "torch")
    for name in beside:
        if attempt(name, beside_torch, name):
            attempt("OpenMP", about_openmp, name)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1:])
