"""Every key that a person may write into a plan file: where it stands, what it holds, what it is for, and an example.

Reading a plan, its page in the docs and `holdfast init` all go by this list; a test compares it with `words.plan`.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.schema.plan import MAX_ATTEMPTS, MAX_HOURS, MAX_SECONDS
from holdfast.schema.values import Kind, Value

METRICS = ("mAP50-95", "mAP50", "precision", "recall", "F1", "F2", "fitness")
_TEXT: tuple[Kind, ...] = ("text",)
_BOOL: tuple[Kind, ...] = ("bool",)


class Key(NamedTuple):
    name: str
    holds: Value
    description: str
    example: str


class Table(NamedTuple):
    """A part of the file; `keys` is None where the names are the user's own."""

    name: str
    description: str
    keys: tuple[Key, ...] | None
    example: str = ""


TOP = Table(
    "",
    "At the top of the file, before the first `[table]`.",
    (
        Key(
            "trainer",
            Value(("text",), "ultralytics", choices=("command", "ultralytics")),
            "Who trains: `ultralytics` is started by Holdfast itself, `command` is a command of yours. Where it is not "
            "written, it is `command` if there is a command.",
            'trainer = "ultralytics"',
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: what to start; a text is split like a shell does, but no shell runs it.",
            'command = "python train.py --epochs 20"',
        ),
        Key(
            "name",
            Value(_TEXT),
            "Name of the run; its folder is `.holdfast/runs/NAME-N`. The plan file's name by default.",
            'name = "blood-cells"',
        ),
        Key(
            "cwd",
            Value(_TEXT),
            "The folder that the training runs in, and that relative paths count from. The plan's own by default.",
            'cwd = ".."',
        ),
        Key(
            "python",
            Value(_TEXT),
            "The interpreter that has Ultralytics; the one beside `yolo` on the PATH by default.",
            'python = ".venv/bin/python"',
        ),
        Key(
            "assigner",
            Value(_TEXT, "device", choices=("device", "cpu")),
            "Where Ultralytics matches boxes with predictions; `cpu` goes round a kernel that fails on some Macs.",
            'assigner = "cpu"',
        ),
        Key(
            "on_finding",
            Value(_TEXT, "act", choices=("act", "warn")),
            "What to do about a proven failure: `act` stops, mends and goes on; `warn` only tells.",
            'on_finding = "warn"',
        ),
        Key(
            "observe_only",
            Value(_BOOL, default=False),
            "Watch and record; nothing is stopped, restarted or changed.",
            "observe_only = true",
        ),
        Key(
            "on_event",
            Value(_TEXT),
            "A command of yours at start, finding, restart and end; it gets JSON on its stdin.",
            'on_event = "./tell-me.sh"',
        ),
        Key(
            "checkpoint",
            Value(_TEXT),
            "For trainer `command`: a glob for the checkpoints that it writes.",
            'checkpoint = "out/*.pt"',
        ),
        Key(
            "resume_with",
            Value(_TEXT),
            "For trainer `command`: arguments that make it go on from `{checkpoint}`.",
            'resume_with = "--resume {checkpoint}"',
        ),
        Key(
            "grace_s",
            Value(("number",), 10.0, least=0, most=MAX_SECONDS),
            "Seconds between asking a process to end and ending it.",
            "grace_s = 30",
        ),
        Key(
            "backoff_s",
            Value(("number",), 2.0, least=0, most=MAX_SECONDS),
            "Seconds before the second attempt; doubled for each further one, up to a minute.",
            "backoff_s = 5",
        ),
        Key(
            "max_lost_work_s",
            Value(("number",), least=0, most=MAX_SECONDS),
            "Seconds of work that a death may cost. Left out, it follows from what a snapshot costs and how often this "
            "run dies.",
            "max_lost_work_s = 300",
        ),
        Key(
            "sample_every_s",
            Value(("number",), 1.0, least=0.05, most=MAX_SECONDS),
            "Seconds between two looks at memory, swap and disk.",
            "sample_every_s = 2",
        ),
        Key(
            "keep_awake",
            Value(_BOOL, default=True),
            "Keep the machine from going to sleep while the run lives.",
            "keep_awake = false",
        ),
    ),
)

STAGE = Table(
    "stages",
    "A part of the run with its own settings, trained in the order in which they stand. Without any, the run is one "
    "stage.",
    (
        Key("name", Value(_TEXT), "Its name, fit for a folder; its number by default.", 'name = "small"'),
        Key(
            "from",
            Value(_TEXT, choices=("scratch", "best", "last")),
            "The weights that it begins with: the best of all stages before, the last of the stage before, or `scratch` for the model as "
            "it is set. `scratch` for the first stage, `best` for the others.",
            'from = "last"',
        ),
        Key(
            "settings",
            Value(("table",), {}),
            "Settings of Ultralytics for this stage, over those of the plan.",
            "settings = { imgsz = 640, epochs = 20 }",
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: what to start in this stage instead of the plan's.",
            'command = "python train.py --size 640"',
        ),
        Key(
            "gate",
            Value(("table",), {}),
            "What it must have reached before the next stage begins.",
            "gate = { at_least = 0.3 }",
        ),
        Key(
            "skip_if_oom",
            Value(_BOOL, default=False),
            "Measured first, and left out where memory does not allow it.",
            "skip_if_oom = true",
        ),
    ),
)

GATE = Table(
    "stages.gate",
    "What a stage must have reached before the next one begins. Without it: anything above zero.",
    (
        Key("metric", Value(_TEXT, "mAP50-95"), "Which metric counts.", 'metric = "mAP50"'),
        Key("at_least", Value(("number",), least=0), "The value that it must have reached.", "at_least = 0.3"),
        Key(
            "must_improve",
            Value(_BOOL, default=False),
            "It must also be better than the best stage before.",
            "must_improve = true",
        ),
    ),
)

TABLES = (
    Table(
        "settings",
        "Settings of Ultralytics for all stages, by their own names; [its page](https://docs.ultralytics.com/usage/cfg) "
        "tells what each does. `model` and `data` are needed.",
        None,
        'model = "yolo11n.yaml"\ndata = "data.yaml"\nepochs = 50\nimgsz = 416\nbatch = 8\ndevice = "auto"',
    ),
    STAGE,
    GATE,
    Table(
        "validation",
        "How Ultralytics validates while it trains, where that is not a setting of its own.",
        (
            Key(
                "every",
                Value(("whole",), 1, least=1),
                "Epochs from one validation to the next; the last epoch is always validated.",
                "every = 5",
            ),
            Key(
                "batch",
                Value(("whole",), least=1),
                "Images in a batch; twice the training's by default.",
                "batch = 4",
            ),
            Key("max_det", Value(("whole",), least=1), "Boxes kept for an image.", "max_det = 100"),
            Key(
                "best_by",
                Value(_TEXT, "fitness", choices=("fitness", "mAP50", "F1", "F2")),
                "What best.pt is the best by; Ultralytics' fitness is mAP50-95.",
                'best_by = "F2"',
            ),
            Key(
                "on_cpu",
                Value(_TEXT, "auto", choices=("auto", "always", "never")),
                "Whether best.pt is validated once more on the CPU at the end; `auto`: where the device is suspect.",
                'on_cpu = "always"',
            ),
        ),
    ),
    Table(
        "clear_cache",
        "How often the device's cache of free memory is given back; 0 is never.",
        (
            Key("epochs", Value(("whole",), 0, least=0), "Every so many epochs.", "epochs = 1"),
            Key("steps", Value(("whole",), 0, least=0), "Every so many steps of the optimizer.", "steps = 200"),
        ),
    ),
    Table(
        "budget",
        "What the run may cost.",
        (
            Key(
                "attempts",
                Value(("whole",), 10, least=1, most=MAX_ATTEMPTS),
                "How often the training may be started in all, each stage for itself. Planned restarts cost none.",
                "attempts = 20",
            ),
            Key(
                "hours",
                Value(("number",), least=0.0001, most=MAX_HOURS),
                "For the whole run: then it is stopped with a snapshot, and can be gone on with.",
                "hours = 10",
            ),
            Key(
                "memory",
                Value(("text", "whole", "number")),
                "What the training may hold: `12 GB`, `11.5 GiB`, or a share of the machine. What the machine has by "
                "default.",
                'memory = "80%"',
            ),
        ),
    ),
    Table(
        "policy",
        "What may be changed when something must be.",
        (
            Key(
                "devices",
                Value(("texts",), []),
                "In the order in which they are tried. By default the one that the settings name, then the CPU.",
                'devices = ["mps", "cpu"]',
            ),
            Key(
                "may_change",
                Value(("texts",)),
                "The only settings that a remedy may change. All that are not in `never_change` by default.",
                'may_change = ["batch", "workers", "validation.batch"]',
            ),
            Key(
                "never_change",
                Value(("texts",), []),
                "Settings that stay as they are, whatever happens.",
                'never_change = ["imgsz", "device"]',
            ),
            Key(
                "planned_restarts",
                Value(_BOOL, default=True),
                "A fresh process, at the very same point, before memory is used up.",
                "planned_restarts = false",
            ),
        ),
    ),
    Table(
        "environment",
        "Variables for the training, over those that there are.",
        None,
        'PYTORCH_ENABLE_MPS_FALLBACK = "1"\nOMP_NUM_THREADS = "4"',
    ),
    Table(
        "flags",
        "For trainer `command`: what this command calls a setting that a remedy may change.",
        None,
        'batch = "--bs"\nimgsz = "--size"',
    ),
    Table(
        "rules",
        "How far a rule may go, and its limits: `severity` is `off`, `note`, `warn` or `fatal`. `holdfast rules` lists them.",
        None,
        'overfitting = { severity = "off" }\nloss-all-zero = { steps = 50 }',
    ),
    Table(
        "hang",
        "When silence counts as a hang. All of it must hold, and the stacks must stand still as well.",
        (
            Key(
                "floor_s",
                Value(("number",), 300.0, least=0, most=MAX_SECONDS),
                "Never before this many seconds without a step, a fetch or output.",
                "floor_s = 600",
            ),
            Key(
                "start_floor_s",
                Value(("number",), 900.0, least=0, most=MAX_SECONDS),
                "The same before the first step: building a cache or compiling takes long and is quiet.",
                "start_floor_s = 1800",
            ),
            Key(
                "factor",
                Value(("number",), 10.0, least=1, most=MAX_SECONDS),
                "Nor before this many times the longest pause that this run has already survived.",
                "factor = 20",
            ),
            Key(
                "confirm_s",
                Value(("number",), 30.0, least=0, most=MAX_SECONDS),
                "Seconds between the two stack dumps that must be equal.",
                "confirm_s = 60",
            ),
        ),
    ),
)
BY_NAME = {table.name: table for table in (TOP, *TABLES)}
