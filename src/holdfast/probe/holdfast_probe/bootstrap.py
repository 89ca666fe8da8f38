"""The probe's first moments in an interpreter: says that it started, and waits for torch.

Nothing here may cost more than a millisecond or two: most Python processes never import torch.
"""

import os
import sys
import time

from . import protocol
from .gc_pause import GcPause
from .import_hooks import after_import

INTERPRETERS_LIMIT = 256 * 1024


def wake():
    """Called by our sitecustomize, in every Python process under the supervisor."""
    attempt_dir = os.environ.get(protocol.ATTEMPT_DIR)
    if not attempt_dir:
        return
    helper = is_multiprocessing_helper()
    if not helper:
        _append_line(
            attempt_dir,
            '{"event":"interpreter","at":%.3f,"pid":%d,"ppid":%d,"python":"%s","executable":"%s"}\n'
            % (time.time(), os.getpid(), os.getppid(), _python_version(), _escaped(sys.executable or "")),
        )
    _offer_guard()
    if os.environ.get(protocol.CHECK):
        from . import dry_run

        dry_run.begin()
    start = GcPause()
    quiet = not helper and not os.environ.get(protocol.OBSERVE_ONLY)
    after_import(
        "torch",
        lambda torch: _torch_imported(torch, attempt_dir, helper, start),
        before=start.begins if quiet else None,
    )


def _torch_imported(torch, attempt_dir, helper, start):
    if not helper:
        _append_line(
            attempt_dir,
            '{"event":"torch-imported","at":%.3f,"pid":%d,"torch":"%s"}\n'
            % (time.time(), os.getpid(), _escaped(str(getattr(torch, "__version__", "unknown")))),
        )
    from . import probe

    if os.environ.get(protocol.CHECK):
        from . import dry_run

        dry_run.before_probe(torch)
    probe.install(torch, attempt_dir, start)
    if not helper and os.environ.get(protocol.CHECK):
        dry_run.from_environment(torch, probe.current())


def is_multiprocessing_helper():
    """Spawned and forkserver processes, and the resource tracker: they say nothing until one of them trains."""
    words = getattr(sys, "orig_argv", None) or _command_line()
    return any(word == "--multiprocessing-fork" or word.startswith("from multiprocessing.") for word in words)


def _command_line():
    """Python 3.9 has no `sys.orig_argv`."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


def _python_version():
    return "%d.%d.%d" % sys.version_info[:3]


def _escaped(text):
    """Inside a JSON string. The json module would cost more to import than everything else here."""
    printable = "".join(character for character in text if character >= " ")
    return printable.replace("\\", "\\\\").replace('"', '\\"')


def _append_line(attempt_dir, line):
    try:
        path = os.path.join(attempt_dir, protocol.INTERPRETERS_FILE)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < INTERPRETERS_LIMIT:
                os.write(descriptor, line.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _offer_guard():
    """`import holdfast` works under the supervisor also where Holdfast is not installed: asked last, after all others."""
    spec_type = type(sys.__spec__)  # importlib.machinery would cost more to import than all of this

    class Offer(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_type("holdfast", Offer) if name == "holdfast" else None

        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            def __getattr__(name):  # noqa: N807 - a module's own
                if name != "guard":
                    raise AttributeError("module 'holdfast' has no attribute %r" % name)
                from .guard import guard

                return guard

            module.__getattr__ = __getattr__

    sys.meta_path.append(Offer)
