"""The inputs to mutate: one of every kind that Holdfast reads, written by the real programs if possible.

A `Kind` lists the files in the folder of a case, which of them may be mutated, with which mutators, and which commands then
read them. PLACE stands for the folder where they were created, and is replaced with the folder of the case.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import kills
import mutators
import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOLDFAST = Path(sys.executable).with_name("holdfast")
FIXTURES = ROOT / "tests" / "fixtures"
PLACE = b"@CASE@"
RUN = ".holdfast/runs/recorded-1"
COMMAND = '["touch", "marker"]'
"""The command of a resumed run. It creates a mark in the folder of the case and does nothing else."""
CANARY = "CANARY"
"""Code in an input creates a file of this name if it is executed."""


@dataclass
class Kind:
    name: str
    files: dict[str, bytes]
    targets: list[str]
    commands: list[list[str]]
    """`-` as the last word passes the target on standard input; {target} is its path."""
    mutators: list = field(default_factory=lambda: mutators.CONTENT)
    weight: int = 1
    places: bool = True
    """Whether a FIFO, a link or a folder may replace the target."""
    only_place: bool = False
    reader: str = "command"
    """`command`: the command line; `snapshot`, `checkpoint`: their readers, which need torch; `image`: the image scanner."""


def make(scratch: Path, *, quick: bool = False) -> dict[str, Kind]:
    """Return every kind by name. Takes about ten seconds, to record a run and to finish it.

    `quick` does not finish the run and omits kinds that need torch.
    """
    base = scratch / "base"
    base.mkdir()
    data = make_data_set(base)
    dead = record_run(base)
    done = {} if quick else resume_run(base)
    checkpoints = {} if quick else make_checkpoints(base)
    shutil.rmtree(base)
    kinds = [
        *_run_kinds(dead),
        *_plan_kinds(data),
        *_data_kinds(data, with_real_python=not quick),
        *_foreign_record_kinds(),
        *_command_line_kinds(),
    ]
    if not quick:
        kinds += [*_finished_run_kinds(dead, done), *_checkpoint_kinds(dead, checkpoints)]
    return {kind.name: kind for kind in kinds}


# --- recorded by the real programs ------------------------------------------------------------------------------------


LIGHT = {"PYTHONPATH": str(ROOT / "tests" / "light"), "OMP_NUM_THREADS": "1"}
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 120}


def record_run(base: Path) -> dict[str, bytes]:
    """Return the files of a run whose supervisor was killed in its second attempt."""
    training = [sys.executable, str(HERE / "programs" / "recorded.py")]
    options = [
        "--name",
        "recorded",
        "--max-lost-work",
        "0",
        "--backoff",
        "0",
        "--max-attempts",
        "4",
        "--checkpoint",
        "*.pt",
    ]
    command = [HOLDFAST, "run", *options, "--", *training]
    subprocess.run(command, cwd=base, env={**os.environ, **LIGHT}, check=False, **QUIET)
    _wait_for_the_training(base / RUN)
    files = _read_files(base / ".holdfast", base)
    _read_heartbeat(files)
    return _set_harmless_plan(files, base)


def resume_run(base: Path) -> dict[str, bytes]:
    """Return the files of the same run after it has finished."""
    subprocess.run([HOLDFAST, "resume", "recorded"], cwd=base, env={**os.environ, **LIGHT}, check=True, **QUIET)
    return _set_harmless_plan(_read_files(base / ".holdfast", base), base)


def _set_harmless_plan(files: dict[str, bytes], base: Path) -> dict[str, bytes]:
    plan = files[f"{RUN}/plan.toml"].decode()
    kept = [line for line in plan.splitlines() if not line.startswith("command")]
    changed = "\n".join([f"command = {COMMAND}", *kept, ""]).encode()
    return {**files, f"{RUN}/plan.toml": changed, "state.pt": (base / "state.pt").read_bytes()}


def _wait_for_the_training(run: Path) -> None:
    """Wait until the training exits, which happens at its next step without a supervisor."""
    ours = [process for process in kills.find_marked(str(run)) if _belongs_to_run(process, run)]
    for process in psutil.wait_procs(ours, timeout=20)[1]:
        process.kill()


def _belongs_to_run(process: psutil.Process, run: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("HOLDFAST_ATTEMPT_DIR", "").startswith(f"{run}/")
    return False


def _read_heartbeat(files: dict[str, bytes]) -> None:
    """Add the heartbeat table, which is in shared memory while a run is active."""
    content_or_path = files[f"{RUN}/heartbeat"]
    if content_or_path.startswith(b"HFHB is in "):
        elsewhere = Path(content_or_path.removeprefix(b"HFHB is in ").decode())
        files["heartbeat-elsewhere"] = content_or_path
        files[f"{RUN}/heartbeat"] = elsewhere.read_bytes() if elsewhere.exists() else b""


def _read_files(folder: Path, base: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("reserve", "trace", "report.html"):
            content = path.read_bytes()
            found[str(path.relative_to(base))] = content.replace(str(base).encode(), PLACE)
    return found


def make_data_set(base: Path) -> dict[str, bytes]:
    from PIL import Image, ImageDraw

    files = {}
    for split, count in (("train", 4), ("val", 2)):
        for number in range(count):
            image = Image.new("RGB", (64, 48), (number * 40, 90, 200))
            ImageDraw.Draw(image).rectangle((5 + number * 5, 5, 30 + number * 6, 30), fill=(250, number * 50, 10))
            suffix = ("png", "jpg", "bmp", "webp")[number]
            target = io.BytesIO()
            image.save(target, {"jpg": "JPEG"}.get(suffix, suffix.upper()))
            files[f"images/{split}/{split}{number}.{suffix}"] = target.getvalue()
            files[f"labels/{split}/{split}{number}.txt"] = b"0 0.5 0.5 0.25 0.25\n1 0.3 0.3 0.1 0.2\n"
    files["data.yaml"] = b"path: .\ntrain: images/train\nval: images/val\nnc: 2\nnames: [thing, other]\n"
    for name, content in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(content)
    return files


# --- kinds ------------------------------------------------------------------------------------------------------------


READS = [["status"], ["status", "--json"], ["report"], ["report", "--json"], ["diagnose", RUN], ["status", RUN]]
RESUME = [["resume", "--max-attempts", "1"], ["resume", RUN, "--max-attempts", "1"]]


def _run_kinds(dead: dict[str, bytes]) -> list[Kind]:
    """Return the kinds for the files of a run folder."""
    reads, resume = READS, RESUME
    ranks = [f"{RUN}/attempts/{n}/rank-0.jsonl" for n in (1, 2)]
    interpreters = [f"{RUN}/attempts/{n}/interpreters.jsonl" for n in (1, 2)]
    odd_names = {
        f"{RUN}/attempts/1/rank-foo.jsonl": b"", f"{RUN}/attempts/1/rank-.jsonl": b"", f"{RUN}/attempts/1/rank-0-pid-x.jsonl": b"",
        f"{RUN}/attempts/99999999999999999999/rank-0.jsonl": b"", f"{RUN}/snapshots/a.99999999999999999999.tmp": b"",
    }  # fmt: skip
    return [
        Kind("journal", dead, [f"{RUN}/journal.jsonl"], [*reads, *resume], weight=16),
        Kind("events of a rank", dead, ranks, [*reads, *resume], weight=12),
        Kind("interpreters", dead, interpreters, [*reads, *resume], weight=6),
        Kind("heartbeat", dead, [f"{RUN}/heartbeat"], [*reads, *resume], mutators=mutators.BINARY, weight=6),
        Kind("heartbeat elsewhere", _with_pointer(dead), [f"{RUN}/heartbeat"], [["status"], *resume], weight=2),
        Kind(
            "plan in a run folder",
            dead,
            [f"{RUN}/plan.toml"],
            [["resume", "--max-attempts", "1"], ["status"], ["resume", RUN]],
            weight=8,
        ),
        Kind("lock", dead, [f"{RUN}/lock"], [["status"], *resume], weight=3),
        Kind(
            "output log",
            dead,
            [f"{RUN}/attempts/{n}/stdout.log" for n in (1, 2)],
            [["report"], ["diagnose", "{target}"], *resume],
            weight=3,
        ),
        Kind(
            "odd names in a run folder",
            {**dead, **odd_names},
            [f"{RUN}/journal.jsonl", *odd_names],
            [*reads, *resume],
            weight=2,
        ),
    ]


def _finished_run_kinds(dead: dict[str, bytes], done: dict[str, bytes]) -> list[Kind]:
    summary, journal = f"{RUN}/summary.json", f"{RUN}/journal.jsonl"
    beside = ["report", "recorded-1", "--beside", "other-1"]
    return [
        Kind("journal of a run that ended", done, [journal], [*READS, *RESUME], weight=8),
        Kind("summary", done, [summary], [["status"], ["report"], ["resume"], ["diagnose", RUN]], weight=5),
        Kind("two runs", {**dead, **_second(done)}, [journal], [beside, ["status"], ["resume"]], weight=3),
    ]


def _with_pointer(dead: dict[str, bytes]) -> dict[str, bytes]:
    return {**dead, f"{RUN}/heartbeat": dead.get("heartbeat-elsewhere", b"HFHB is in /dev/shm/holdfast-1-00")}


def _second(done: dict[str, bytes]) -> dict[str, bytes]:
    return {name.replace("recorded-1", "other-1"): content for name, content in done.items() if name.startswith(RUN)}


PLAN = f"""\
command = {COMMAND}
name = "cells"
checkpoint = "out/*.pt"
resume_with = "--resume {{checkpoint}}"
grace_s = 1
backoff_s = 0
on_finding = "warn"

[environment]
OMP_NUM_THREADS = "1"

[flags]
batch = "--bs"

[budget]
attempts = 1
hours = 1.5

[rules]
overfitting = "off"
"loss-all-zero.steps" = 50
"""
STAGED = """\
trainer = "ultralytics"
python = "/nonexistent/python"

[settings]
model = "yolo11n.yaml"
data = "data.yaml"
device = "cpu"
batch = 2

[[stages]]
name = "small"
[stages.settings]
epochs = 2
imgsz = 64

[[stages]]
name = "large"
from = "best"
skip_if_oom = true
settings = { imgsz = 96, epochs = 1 }

[stages.gate]
metric = "mAP50"
at_least = 0.3

[policy]
devices = ["cpu"]
never_change = ["imgsz"]

[budget]
memory = "80%"
"""


def _plan_kinds(data: dict[str, bytes]) -> list[Kind]:
    run = [["run", "--max-attempts", "1", "--dir", "run", "--no-check", "plan.toml"]]
    staged = [
        ["run", "--no-check", "plan.toml"],
        ["check", "--only", "plan-possible", "plan.toml"],
        ["fit", "plan.toml"],
    ]
    return [
        Kind("plan of a command", {"plan.toml": PLAN.encode()}, ["plan.toml"], run, weight=8),
        Kind("plan with stages", {**data, "plan.toml": STAGED.encode()}, ["plan.toml"], staged, weight=10),
    ]


PLANTED = {
    f"{name}.py": b"open('CANARY', 'w').close()\nraise ImportError('planted')\n"
    for name in ("json", "sitecustomize", "PIL", "torch", "typing")
}
"""Modules in the working directory that Holdfast must not import."""


def _data_kinds(data: dict[str, bytes], *, with_real_python: bool) -> list[Kind]:
    labels = [name for name in data if name.startswith("labels/")]
    images = [name for name in data if name.startswith("images/")]
    check = ["check", "--only", "data", "--data", "data.yaml", "--", "/nonexistent/python", "train.py"]
    init = ["init", "data.yaml", "--out", "new.toml"]
    real = [[*check[:-2], sys.executable, "train.py"]] if with_real_python else []
    data = {**data, **PLANTED}
    yaml = {"mutators": mutators.YAML}
    return [
        Kind("data.yaml", data, ["data.yaml"], [init] * 5 + [check, check, *real], weight=14, **yaml),
        Kind("label file", data, labels, [init, check], weight=3),
        Kind("label file, scanned", data, labels, [["look"]], weight=8, reader="image"),
        Kind("image", data, images, [["look"]], weight=10, mutators=mutators.BINARY, reader="image"),
        Kind("image in a dataset", data, images, [init, check], weight=2, mutators=mutators.BINARY),
        Kind("list of images", {**data, "data.yaml": data["data.yaml"].replace(b"images/train", b"train.txt"), "train.txt": b"./images/train/train0.png\n./images/train/train1.jpg\n"},
             ["train.txt"], [init, check], weight=3),
    ]  # fmt: skip


def _foreign_record_kinds() -> list[Kind]:
    found = {
        path: path.read_bytes() for path in sorted(FIXTURES.rglob("*")) if path.is_file() and path.name != "README.md"
    }
    kinds = []
    for folder in sorted({path.parent for path in found}):
        files = {f"storage/{path.name}": content for path, content in found.items() if path.parent == folder}
        for name, content in files.items():
            yaml = {"mutators": mutators.YAML} if name.endswith("yaml") else {}
            commands = [
                ["diagnose", "record"],
                ["diagnose", "{target}"],
                ["diagnose", "{target}", "--json"],
                ["diagnose", "-"],
            ]
            weight = 1 if len(content) > 200_000 else 3
            kinds.append(
                Kind(f"foreign: {folder.name}/{Path(name).name}", files, [name], commands, weight=weight, **yaml)
            )
    hparams = b"batch_size: 8\nlr: 0.001\nmodel:\n  name: resnet\n  layers: [2, 2]\nseed: 1\n"
    lightning = {
        name.replace("storage/", "record/lightning_logs/version_0/"): content
        for kind in kinds if "metrics.csv" in kind.name for name, content in kind.files.items()
    }  # fmt: skip
    place = "record/lightning_logs/version_0/hparams.yaml"
    kinds.append(
        Kind(
            "foreign: hparams.yaml",
            {**lightning, place: hparams},
            [place],
            [["diagnose", "record"], ["diagnose", "{target}"]],
            weight=4,
            mutators=mutators.YAML,
        )
    )
    return kinds


# --- checkpoints ------------------------------------------------------------------------------------------------------


class _RunsCode:
    def __reduce__(self):
        return (os.system, (f"touch {CANARY}",))


def make_checkpoints(base: Path) -> dict[str, bytes]:
    """Return checkpoints of every format. Some try to execute code when they are loaded."""
    import torch

    made: dict[str, bytes] = {}

    def save(name: str, thing: object, **options: object) -> None:
        path = base / name
        torch.save(thing, path, **options)
        made[name] = path.read_bytes()

    weights = {"weight": torch.arange(12.0).view(3, 4), "bias": torch.zeros(3), "step": 7}
    save("plain.pt", weights)
    save("old.pt", weights, _use_new_zipfile_serialization=False)
    save("nan.pt", {"weight": torch.full((2,), float("nan"))})
    made["code.pt"] = pickle.dumps({"weight": _RunsCode()})
    inner = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made["plain.pt"])) as source, zipfile.ZipFile(inner, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            target.writestr(
                member, pickle.dumps(_RunsCode(), protocol=2) if member.filename.endswith("data.pkl") else content
            )
    made["code-in-zip.pt"] = inner.getvalue()
    made["script.pt"] = _torchscript(base)
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"step": "7"}}
    ).encode()
    made["plain.safetensors"] = struct.pack("<Q", len(header)) + header + bytes(24)
    hostile = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}'
    made["offset.safetensors"] = struct.pack("<Q", len(hostile)) + hostile + bytes(8)
    deep = b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    made["deep.safetensors"] = struct.pack("<Q", len(deep)) + deep + bytes(8)
    return made


def _torchscript(base: Path) -> bytes:
    """Return a TorchScript archive whose `__setstate__` writes a file."""
    import torch

    program = base / "scripted.py"
    program.write_text(
        "import torch\nfrom typing import Tuple\n\n"
        "class Hostile(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.training = True\n\n"
        "    @torch.jit.export\n    def __getstate__(self) -> Tuple[torch.Tensor, bool]:\n        return torch.zeros(1), self.training\n\n"
        "    @torch.jit.export\n    def __setstate__(self, state: Tuple[torch.Tensor, bool]):\n"
        f"        torch.save(state[0], '{CANARY}')\n        self.training = state[1]\n\n"
        "    def forward(self, x):\n        return x\n"
    )
    sys.path.insert(0, str(base))
    try:
        import scripted

        torch.jit.script(scripted.Hostile()).save(str(base / "script.pt"))
    except Exception:  # noqa: BLE001 - if this torch does not support it, a plain scripted module is hostile enough to the reader
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(base / "script.pt"))
    finally:
        sys.path.remove(str(base))
    return (base / "script.pt").read_bytes()


def _checkpoint_kinds(dead: dict[str, bytes], checkpoints: dict[str, bytes]) -> list[Kind]:
    plan = dead[f"{RUN}/plan.toml"].replace(
        b'checkpoint = "*.pt"', b'checkpoint = "out/*"\nresume_with = "{checkpoint}"'
    )
    files = {**{name: content for name, content in dead.items() if "snapshots" not in name}, f"{RUN}/plan.toml": plan}
    kept = {f"out/{name}": content for name, content in checkpoints.items()}
    targets = list(kept)
    snapshots = [name for name in dead if name.endswith(".snapshot")]
    ended = {
        "record/args.yaml": b"model: yolo11n.yaml\nepochs: 3\n",
        "record/results.csv": b"epoch,train/box_loss\n1,1.0\n2,0.9\n",
    }
    weights = {f"record/weights/{name}": checkpoints["plain.pt"] for name in ("last.pt", "best.pt")}
    # Only regular files are read back: the supervisor passes nothing else.
    return [
        Kind("checkpoint of a run", {**files, **kept}, targets, [["resume", "--max-attempts", "1"]], mutators=[*mutators.BINARY, mutators.nest, mutators.leave], weight=6),
        Kind("checkpoint, read back", kept, targets, [["read"]], mutators=[*mutators.BINARY, mutators.nest, *[mutators.leave] * 3], weight=14, places=False, reader="checkpoint"),
        Kind("checkpoint of a foreign run", {**ended, **weights}, list(weights), [["diagnose", "record"]], mutators=mutators.BINARY, weight=3),
        Kind("snapshot", dead, snapshots, [["read"]], mutators=mutators.BINARY, weight=8, reader="snapshot"),
        Kind("snapshot of a run", dead, snapshots, [["resume", "--max-attempts", "1"], ["status"]], mutators=mutators.BINARY, weight=3),
    ]  # fmt: skip


# --- command lines ----------------------------------------------------------------------------------------------------


def _command_line_kinds() -> list[Kind]:
    return [Kind("command line with a secret", {}, ["secret"], [["secret"]], weight=8, places=False, reader="secret")]


SECRET_FORMS: list[tuple[str, ...]] = [
    ("--token={}",), ("--token", "{}"), ("--api-key={}",), ("--api_key", "{}"), ("--password={}",), ("--hf-token", "{}"), ("--secret={}",),
    ("--aws-secret-access-key", "{}"), ("--wandb.api-key={}",), ("--env=API_TOKEN={}",), ("-e", "TOKEN={}"), ("-Dpassword={}",),
    ("token={}",), ("WANDB_API_KEY={}",), ("+db.password={}",), ("logger.wandb.api_key={}",), ("--header=Authorization: Bearer {}",),
    ("https://user:{}@example.org/x",), ("https://example.org/?token={}",), ("postgres://u:{}@h/db",),
    ("export WANDB_API_KEY={}; python t.py",), ("env TOKEN={} python t.py",), ("sudo X_PASSWORD={} python",),
]  # fmt: skip
"""Command-line words that contain a secret; some of them are shell programs."""
ENVIRONMENT_FORMS = ["DB_PASSWORD", "WANDB_API_KEY", "MY_TOKEN", "AWS_SECRET_ACCESS_KEY"]
SECRET_VALUES = [
    "python",
    "platform",
    "command",
    "attempt",
    "holdfast",
    "event",
    "at",
    "null",
    "true",
    "1",
    "run",
    "signal",
    "path",
]
"""Passwords that are also words in Holdfast's records."""
