"""Every key that a plan file may contain: its table, its type, its purpose, and an example.

The plan reader, the docs page about plans and `holdfast init` all use this list; a test compares it with `schema.plan`.
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
    """A table of the file; `keys` is None if the user chooses the key names."""

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
            "`ultralytics`: Holdfast starts Ultralytics; `command`: Holdfast starts your command. If omitted, it is `command` "
            "if there is a command.",
            'trainer = "ultralytics"',
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: the command to start. A string is split as a shell does, but no shell runs it.",
            'command = "python train.py --epochs 20"',
        ),
        Key(
            "name",
            Value(_TEXT),
            "Name of the run; its folder is `.holdfast/runs/NAME-N`. Default: the name of the plan file.",
            'name = "blood-cells"',
        ),
        Key(
            "cwd",
            Value(_TEXT),
            "Working folder of the training; relative paths start here. Default: the folder of the plan file.",
            'cwd = ".."',
        ),
        Key(
            "python",
            Value(_TEXT),
            "The Python interpreter with Ultralytics installed. Default: the one next to `yolo` on the PATH.",
            'python = ".venv/bin/python"',
        ),
        Key(
            "assigner",
            Value(_TEXT, "device", choices=("device", "cpu")),
            "Where Ultralytics assigns boxes to predictions; `cpu` avoids a kernel that fails on some Macs.",
            'assigner = "cpu"',
        ),
        Key(
            "on_finding",
            Value(_TEXT, "act", choices=("act", "warn")),
            "What to do about a proven failure: `act` stops the training, fixes the cause and resumes; `warn` only reports it.",
            'on_finding = "warn"',
        ),
        Key(
            "observe_only",
            Value(_BOOL, default=False),
            "Only watch and record; do not stop, restart or change anything.",
            "observe_only = true",
        ),
        Key(
            "on_event",
            Value(_TEXT),
            "A command to run at start, finding, restart and end; it receives JSON on stdin.",
            'on_event = "./notify-me.sh"',
        ),
        Key(
            "checkpoint",
            Value(_TEXT),
            "For trainer `command`: a glob pattern for the checkpoints that it writes.",
            'checkpoint = "out/*.pt"',
        ),
        Key(
            "resume_with",
            Value(_TEXT),
            "For trainer `command`: arguments that make it resume from `{checkpoint}`.",
            'resume_with = "--resume {checkpoint}"',
        ),
        Key(
            "grace_s",
            Value(("number",), 10.0, least=0, most=MAX_SECONDS),
            "Seconds between asking a process to stop and killing it.",
            "grace_s = 30",
        ),
        Key(
            "backoff_s",
            Value(("number",), 2.0, least=0, most=MAX_SECONDS),
            "Seconds to wait before the second attempt; doubled for each further attempt, up to a minute.",
            "backoff_s = 5",
        ),
        Key(
            "max_lost_work_s",
            Value(("number",), least=0, most=MAX_SECONDS),
            "Maximum seconds of work that a crash may cost. Default: derived from the cost of a snapshot and how often this "
            "run crashes.",
            "max_lost_work_s = 300",
        ),
        Key(
            "sample_every_s",
            Value(("number",), 1.0, least=0.05, most=MAX_SECONDS),
            "Seconds between two samples of memory, swap and disk.",
            "sample_every_s = 2",
        ),
        Key(
            "keep_awake",
            Value(_BOOL, default=True),
            "Keep the machine awake during the run.",
            "keep_awake = false",
        ),
    ),
)

STAGE = Table(
    "stages",
    "A part of the run with its own settings. Stages are trained in the order of the file. Without any, the run is one "
    "stage.",
    (
        Key("name", Value(_TEXT), "Name of the stage, used as a folder name. Default: its number.", 'name = "small"'),
        Key(
            "from",
            Value(_TEXT, choices=("scratch", "best", "last")),
            "Initial weights: `best` of all previous stages, `last` of the previous stage, or `scratch` for the model in the settings. "
            "Default: `scratch` for the first stage, `best` for the others.",
            'from = "last"',
        ),
        Key(
            "settings",
            Value(("table",), {}),
            "Ultralytics settings for this stage. They override those of the plan.",
            "settings = { imgsz = 640, epochs = 20 }",
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: the command for this stage. It replaces that of the plan.",
            'command = "python train.py --size 640"',
        ),
        Key(
            "gate",
            Value(("table",), {}),
            "What the stage must reach before the next one starts.",
            "gate = { at_least = 0.3 }",
        ),
        Key(
            "skip_if_oom",
            Value(_BOOL, default=False),
            "Measure the memory need first, and skip the stage if it does not fit.",
            "skip_if_oom = true",
        ),
    ),
)

GATE = Table(
    "stages.gate",
    "What a stage must reach before the next one starts. Default: any value above zero.",
    (
        Key("metric", Value(_TEXT, "mAP50-95"), "The metric to check.", 'metric = "mAP50"'),
        Key("at_least", Value(("number",), least=0), "The minimum value of the metric.", "at_least = 0.3"),
        Key(
            "must_improve",
            Value(_BOOL, default=False),
            "The value must also be better than that of the best previous stage.",
            "must_improve = true",
        ),
    ),
)

TABLES = (
    Table(
        "settings",
        "Ultralytics settings for all stages, under their Ultralytics names; see [its documentation](https://docs.ultralytics.com/usage/cfg). "
        "`model` and `data` are required.",
        None,
        'model = "yolo11n.yaml"\ndata = "data.yaml"\nepochs = 50\nimgsz = 416\nbatch = 8\ndevice = "auto"',
    ),
    STAGE,
    GATE,
    Table(
        "validation",
        "Options for validation during training that Ultralytics does not offer as settings.",
        (
            Key(
                "every",
                Value(("whole",), 1, least=1),
                "Validate every this many epochs; the last epoch is always validated.",
                "every = 5",
            ),
            Key(
                "batch",
                Value(("whole",), least=1),
                "Images per validation batch. Default: twice the training batch.",
                "batch = 4",
            ),
            Key("max_det", Value(("whole",), least=1), "Maximum number of boxes per image.", "max_det = 100"),
            Key(
                "best_by",
                Value(_TEXT, "fitness", choices=("fitness", "mAP50", "F1", "F2")),
                "The metric that selects best.pt; the fitness of Ultralytics is mAP50-95.",
                'best_by = "F2"',
            ),
            Key(
                "on_cpu",
                Value(_TEXT, "auto", choices=("auto", "always", "never")),
                "Whether to validate best.pt again on the CPU at the end; `auto`: if the device is suspect.",
                'on_cpu = "always"',
            ),
        ),
    ),
    Table(
        "clear_cache",
        "How often to empty the device's memory cache; 0 means never.",
        (
            Key("epochs", Value(("whole",), 0, least=0), "Every this many epochs.", "epochs = 1"),
            Key("steps", Value(("whole",), 0, least=0), "Every this many optimizer steps.", "steps = 200"),
        ),
    ),
    Table(
        "budget",
        "Limits for the run.",
        (
            Key(
                "attempts",
                Value(("whole",), 10, least=1, most=MAX_ATTEMPTS),
                "Maximum number of times the training is started, per stage. Planned restarts do not count.",
                "attempts = 20",
            ),
            Key(
                "hours",
                Value(("number",), least=0.0001, most=MAX_HOURS),
                "Time limit for the whole run. It is then stopped with a snapshot and can be resumed.",
                "hours = 10",
            ),
            Key(
                "memory",
                Value(("text", "whole", "number")),
                "Memory limit for the training: `12 GB`, `11.5 GiB`, or a percentage of the machine's memory. Default: the "
                "memory of the machine.",
                'memory = "80%"',
            ),
        ),
    ),
    Table(
        "policy",
        "What Holdfast may change if a change is needed.",
        (
            Key(
                "devices",
                Value(("texts",), []),
                "Devices in the order in which to try them. Default: the device in the settings, then the CPU.",
                'devices = ["mps", "cpu"]',
            ),
            Key(
                "may_change",
                Value(("texts",)),
                "The only settings that a remedy may change. Default: all except those in `never_change`.",
                'may_change = ["batch", "workers", "validation.batch"]',
            ),
            Key(
                "never_change",
                Value(("texts",), []),
                "Settings that must never be changed.",
                'never_change = ["imgsz", "device"]',
            ),
            Key(
                "planned_restarts",
                Value(_BOOL, default=True),
                "Restart in a fresh process, from exactly the same point, before memory runs out.",
                "planned_restarts = false",
            ),
        ),
    ),
    Table(
        "environment",
        "Environment variables for the training. They override the existing ones.",
        None,
        'PYTORCH_ENABLE_MPS_FALLBACK = "1"\nOMP_NUM_THREADS = "4"',
    ),
    Table(
        "flags",
        "For trainer `command`: the command's own flag for a setting that a remedy may change.",
        None,
        'batch = "--bs"\nimgsz = "--size"',
    ),
    Table(
        "rules",
        "The limits of a rule, and the highest `severity` it may report: `off`, `note`, `warn` or `fatal`. `holdfast rules` lists the rules.",
        None,
        'overfitting = { severity = "off" }\nloss-all-zero = { steps = 50 }',
    ),
    Table(
        "hang",
        "When a lack of progress counts as a hang. All conditions must be met, and two stack dumps must be equal.",
        (
            Key(
                "floor_s",
                Value(("number",), 300.0, least=0, most=MAX_SECONDS),
                "Minimum number of seconds without a step, a fetch or output.",
                "floor_s = 600",
            ),
            Key(
                "start_floor_s",
                Value(("number",), 900.0, least=0, most=MAX_SECONDS),
                "The same before the first step: building a cache or compiling takes long and prints nothing.",
                "start_floor_s = 1800",
            ),
            Key(
                "factor",
                Value(("number",), 10.0, least=1, most=MAX_SECONDS),
                "Minimum as a multiple of the longest pause so far in this run.",
                "factor = 20",
            ),
            Key(
                "confirm_s",
                Value(("number",), 30.0, least=0, most=MAX_SECONDS),
                "Seconds between the two stack dumps.",
                "confirm_s = 60",
            ),
        ),
    ),
)
BY_NAME = {table.name: table for table in (TOP, *TABLES)}
