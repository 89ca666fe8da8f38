"""Probe start-up: record that this interpreter started, then wait for torch.

Nothing here may take more than a millisecond or two, because most Python processes never import torch.
"""

import os
import sys
import time

from . import protocol
from .gc_pause import GcPause
from .import_hooks import after_import

MAX_INTERPRETERS_BYTES = 256 * 1024


def start():
    """Start the probe. The probe's sitecustomize calls this in every Python process under the supervisor."""
    attempt_dir = os.environ.get(protocol.ATTEMPT_DIR)
    if not attempt_dir:
        return
    helper = is_multiprocessing_helper()
    if not helper:
        _append_line(
            attempt_dir,
            '{"event":"interpreter","at":%.3f,"pid":%d,"ppid":%d,"python":"%s","executable":"%s"}\n'
            % (time.time(), os.getpid(), os.getppid(), _python_version(), _escape(sys.executable or "")),
        )
    _provide_guard()
    if os.environ.get(protocol.CHECK):
        from . import dry_run

        dry_run.begin()
    gc_pause = GcPause()
    may_pause = not helper and not os.environ.get(protocol.OBSERVE_ONLY)
    after_import(
        "torch",
        lambda torch: _on_torch_imported(torch, attempt_dir, helper, gc_pause),
        before=gc_pause.begin if may_pause else None,
    )


def _on_torch_imported(torch, attempt_dir, helper, gc_pause):
    if not helper:
        _append_line(
            attempt_dir,
            '{"event":"torch-imported","at":%.3f,"pid":%d,"torch":"%s"}\n'
            % (time.time(), os.getpid(), _escape(str(getattr(torch, "__version__", "unknown")))),
        )
    from . import probe

    if os.environ.get(protocol.CHECK):
        from . import dry_run

        dry_run.before_probe(torch)
    probe.install(torch, attempt_dir, gc_pause)
    if not helper and os.environ.get(protocol.CHECK):
        dry_run.from_environment(torch, probe.current())


def is_multiprocessing_helper():
    """Return True in a process that multiprocessing starts. It records nothing until it trains."""
    words = getattr(sys, "orig_argv", None) or _command_line()
    return any(word == "--multiprocessing-fork" or word.startswith("from multiprocessing.") for word in words)


def _command_line():
    """Return this process's command line for Python 3.9, which has no `sys.orig_argv`."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


def _python_version():
    return "%d.%d.%d" % sys.version_info[:3]


def _escape(text):
    """Escape text for a JSON string. Importing the json module would take longer than everything else here."""
    printable = "".join(character for character in text if character >= " ")
    return printable.replace("\\", "\\\\").replace('"', '\\"')


def _append_line(attempt_dir, line):
    try:
        path = os.path.join(attempt_dir, protocol.INTERPRETERS_FILE)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < MAX_INTERPRETERS_BYTES:
                os.write(descriptor, line.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _provide_guard():
    """Make `import holdfast` work even if Holdfast is not installed. This finder comes after all others."""
    spec_type = type(sys.__spec__)  # importing importlib.machinery would take longer than everything here

    class GuardFinder(object):
        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_type("holdfast", GuardFinder) if name == "holdfast" else None

        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            def __getattr__(name):  # noqa: N807 - the module's `__getattr__`
                if name != "guard":
                    raise AttributeError("module 'holdfast' has no attribute %r" % name)
                from .guard import guard

                return guard

            module.__getattr__ = __getattr__

    sys.meta_path.append(GuardFinder)
