"""A training that fills its disk. The file MARKS/how selects what it does; its marks record what it has done."""

import os
import signal
from pathlib import Path

marks = Path(os.environ["MARKS"])
disk = Path(os.environ["DISK"])
how = (marks / "how").read_text()
with (marks / "started").open("a") as file:
    file.write("x")


def fill():
    """Write until the disk is full."""
    size = 1 << 16
    with (disk / "filler").open("ab", buffering=0) as file:
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2


first = not (marks / "first").exists()
(marks / "first").touch()
if first and not how.startswith("before"):
    fill()
print("epoch 1/2 loss: 0.9", flush=True)
for _ in range(200):
    print("x" * 200)
if first and how == "death":
    os.kill(os.getpid(), signal.SIGKILL)
if first and how == "raise":
    raise OSError(28, "No space left on device")
(marks / "done").touch()
