"""After a finished training: are the checkpoints that it leaves whole, loadable and finite?

They are read back under the interpreter that trained, because the supervisor has no torch of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.act.going_on import saved_files
from holdfast.child.holdfast_child import protocol, reload
from holdfast.words.events import Reloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.judge.picture import Picture
    from holdfast.words.plan import Plan

MOST_FILES = 3
SECONDS = 120.0
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors", ".model", ".pkl")
SOURCE = Path(reload.__file__)


def read_back(picture: Picture, plan: Plan, clock: Callable[[], float]) -> list[Reloaded]:
    """The newest checkpoints of the newest attempt, read back."""
    attempt = picture.attempt
    files = [(path, step) for path, step in saved_files(picture, plan) if path.suffix in SUFFIXES and path.is_file()]
    newest = sorted(files, key=lambda file: file[1])[-MOST_FILES:]
    if not newest or attempt.hello is None:
        return []
    steps = {str(path): step for path, step in newest}
    said = _ask(attempt.hello.executable, list(steps))
    return [
        Reloaded(at=clock(), path=path, step=steps[path], **answer) for path, answer in said.items() if path in steps
    ]


def _ask(executable: str, paths: list[str]) -> dict[str, dict[str, Any]]:
    """What the reader says of each path; a path is missing where it could not be asked."""
    hidden = (protocol.ATTEMPT_DIR, protocol.HEARTBEAT, protocol.LOCK, "TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        printed = subprocess.run(
            [executable, "-c", SOURCE.read_text(), *paths],
            env={**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            capture_output=True,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for Holdfast
        ).stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
    except (OSError, subprocess.SubprocessError):
        return {}
    answers = {}
    for line in printed.splitlines():
        try:
            said = json.loads(line)
            answers[said.pop("path")] = said
        except (ValueError, KeyError, AttributeError):
            continue
    return answers
