"""Kills at chosen steps. Every training calls `step_done` after each step and `finished` with its weights.

The variable ROBUSTNESS contains JSON: `folder`, for the marks; `kills`, pairs of a step and a target ("training", "supervisor" or
"family"), in the order of the steps. Each kill happens once: it is written to the file `killed` before the signal is sent.
"""

import contextlib
import hashlib
import json
import os
import signal
from pathlib import Path

config = json.loads(os.environ["ROBUSTNESS"])
_folder = Path(config["folder"])
_killed = _folder / "killed"


def _count_kills():
    return len(_killed.read_text().splitlines()) if _killed.exists() else 0


_next = _count_kills()


def step_done(step):
    global _next  # noqa: PLW0603 - one list of kills per process
    if _next >= len(config["kills"]) or step < config["kills"][_next][0]:
        return
    target = config["kills"][_next][1]
    supervisor = _supervisor()
    if supervisor is None:
        return  # the supervisor is already gone: this attempt is about to end, and the next attempt does the kill
    _next = len(config["kills"])  # one kill per attempt: a killed supervisor remains the parent for a moment
    with _killed.open("a") as file:
        file.write(f"{target} {step} {os.environ['HOLDFAST_ATTEMPT']}\n")
        file.flush()
        os.fsync(file.fileno())
    _kill(target, supervisor)


def _supervisor():
    """Return the pid of the supervisor of this run, or None if it is no longer the parent.

    A process whose parent exits gets another parent, usually pid 1. That process and its descendants are not part of the family.
    """
    parent = os.getppid()
    holder = Path(os.environ["HOLDFAST_LOCK"]).read_text().split("\n")[0]
    return parent if parent > 1 and holder == str(parent) and os.getsid(parent) == config["session"] else None


def _kill(target, supervisor):
    """Kill the target. `supervisor` is verified; the process family are its descendants, including this process."""
    import psutil

    family = psutil.Process(supervisor).children(recursive=True) if target == "family" else []
    if target == "family" and os.getpid() not in [process.pid for process in family]:
        raise RuntimeError("this process is not a descendant of the supervisor")
    if family:  # a DataLoader's handler raises when a worker is killed, and the rest of the family would keep running
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in family:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has exited in the meantime
                process.kill()  # psutil compares the creation time first
    if target != "training":
        os.kill(supervisor, signal.SIGKILL)
    if target != "supervisor":
        os.kill(os.getpid(), signal.SIGKILL)


def finished(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    (_folder / "weights").write_text(digest.hexdigest())
