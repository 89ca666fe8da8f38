"""Kills at named steps. Every training calls `step_done` after each step and `finished` with its weights.

ROBUSTNESS holds JSON: `folder`, where marks go; `kills`, pairs of a step and what is killed there ("training", "supervisor" or "family"),
in the order of their steps. Each happens once: it is noted in the file `killed` before it is done.
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


def _noted():
    return len(_killed.read_text().splitlines()) if _killed.exists() else 0


_next = _noted()


def step_done(step):
    global _next  # noqa: PLW0603 - one storm a process
    if _next >= len(config["kills"]) or step < config["kills"][_next][0]:
        return
    what = config["kills"][_next][1]
    supervisor = _supervisor()
    if supervisor is None:
        return  # it is dead already: this life is about to end, and the kill waits for the next one
    _next = len(config["kills"])  # one kill a life: a dying supervisor still is the parent for a moment
    with _killed.open("a") as file:
        file.write(f"{what} {step} {os.environ['HOLDFAST_ATTEMPT']}\n")
        file.flush()
        os.fsync(file.fileno())
    _kill(what, supervisor)


def _supervisor():
    """The pid of the supervisor of this very run; None where it is not our parent any more.

    A process whose parent dies gets another one, pid 1 as a rule: that one and its descendants must never be taken for the family.
    """
    parent = os.getppid()
    holder = Path(os.environ["HOLDFAST_LOCK"]).read_text().split("\n")[0]
    return parent if parent > 1 and holder == str(parent) and os.getsid(parent) == config["session"] else None


def _kill(what, supervisor):
    """`supervisor` was proved to be ours; the family are its descendants, and this process is one of them."""
    import psutil

    family = psutil.Process(supervisor).children(recursive=True) if what == "family" else []
    if what == "family" and os.getpid() not in [process.pid for process in family]:
        raise RuntimeError("this is not our family")
    if family:  # a DataLoader's handler raises at the death of a worker, and the rest of the family would live on
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in family:
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                process.kill()  # which looks at its time of birth first
    if what != "training":
        os.kill(supervisor, signal.SIGKILL)
    if what != "supervisor":
        os.kill(os.getpid(), signal.SIGKILL)


def finished(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    (_folder / "weights").write_text(digest.hexdigest())
