"""Every key that a plan file may contain: its table, its type, its purpose, and an example.

The plan reader, the docs page about plans and `holdfast init` all use this list; a test compares it with `schema.plan`.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import frameworks
from holdfast.schema.plan import MAX_ATTEMPTS, MAX_HOURS, MAX_SECONDS
from holdfast.schema.values import Kind, Value

METRICS = ("mAP50-95", "mAP50", "precision", "recall", "F1", "F2", "fitness")
_TEXT: tuple[Kind, ...] = ("text",)
_BOOL: tuple[Kind, ...] = ("bool",)
_DEFAULT = frameworks.default()
_BUILT = ", ".join(f"`{framework.name}`" for framework in frameworks.all_frameworks() if framework.builds_command)
_DETECTORS = " or ".join(framework.title for framework in frameworks.all_frameworks() if framework.is_detector)
"""The titles of frameworks, for keys that only they support."""


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
    "These keys belong at the top of the file, before the first `[table]`.",
    (
        Key(
            "trainer",
            Value(_TEXT, _DEFAULT.name, choices=(frameworks.COMMAND, *frameworks.names())),
            f"What Holdfast starts: {_BUILT}, or your own `command`. Default: `command` if the plan has a "
            f"`command` key, otherwise `{_DEFAULT.name}`.",
            f'trainer = "{_DEFAULT.name}"',
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: the command to start. A string is split into words as in a shell, but no shell is used.",
            'command = "python train.py --epochs 20"',
        ),
        Key(
            "name",
            Value(_TEXT),
            "Name of the run. Its folder is `.holdfast/runs/NAME-N` in the directory in which you start Holdfast. Default: the name "
            "of the plan file, without `.toml`.",
            'name = "blood-cells"',
        ),
        Key(
            "cwd",
            Value(_TEXT),
            "Working directory of the training process. Relative paths in the plan are resolved against it. Default: the folder "
            "of the plan file. A relative `cwd` is also resolved against that folder.",
            'cwd = ".."',
        ),
        Key(
            "python",
            Value(_TEXT),
            "The Python interpreter in whose environment the framework is installed. Default: the interpreter of the framework's "
            "command on the PATH, or Holdfast's own interpreter if there is none.",
            'python = ".venv/bin/python"',
        ),
        Key(
            "assigner",
            Value(_TEXT, "device", choices=("device", "cpu")),
            f"Where {_DETECTORS} runs its assigner, which matches labeled boxes with predictions; `cpu` avoids a kernel that fails "
            "on some Macs.",
            'assigner = "cpu"',
        ),
        Key(
            "on_finding",
            Value(_TEXT, "act", choices=("act", "warn")),
            "What to do about a fatal finding, such as a loss that stays zero: `act` stops training, applies a remedy if one "
            "is known, and resumes; `warn` only reports it. With `warn`, no setting is changed after a crash either.",
            'on_finding = "warn"',
        ),
        Key(
            "observe_only",
            Value(_BOOL, default=False),
            "Only watch and record; never stop, restart or change anything.",
            "observe_only = true",
        ),
        Key(
            "on_event",
            Value(_TEXT),
            "A command that Holdfast runs when the run starts or ends, a stage ends, a problem is found, or training restarts. It "
            "receives JSON on stdin and runs in the directory in which you start Holdfast.",
            'on_event = "./notify-me.sh"',
        ),
        Key(
            "checkpoint",
            Value(_TEXT),
            "For trainer `command`: a glob pattern for the checkpoints that the command writes.",
            'checkpoint = "out/*.pt"',
        ),
        Key(
            "resume_with",
            Value(_TEXT),
            "For trainer `command`: arguments that make the command resume; `{checkpoint}` stands for the path of the checkpoint.",
            'resume_with = "--resume {checkpoint}"',
        ),
        Key(
            "grace_s",
            Value(("number",), 10.0, least=0, most=MAX_SECONDS),
            "When a process is stopped: seconds between SIGTERM and SIGKILL.",
            "grace_s = 30",
        ),
        Key(
            "backoff_s",
            Value(("number",), 2.0, least=0, most=MAX_SECONDS),
            "Seconds to wait before the second attempt. The wait doubles with each further attempt, up to one minute. After an "
            "attempt that made progress, it is `backoff_s` again. There is no wait before an attempt with a changed setting.",
            "backoff_s = 5",
        ),
        Key(
            "max_lost_work_s",
            Value(("number",), least=0, most=MAX_SECONDS),
            "Maximum seconds of work that a crash may lose, if snapshots are taken. Default: 120, or more if training would "
            "otherwise spend more than 1% of the time waiting for snapshots, or if writing them would take more than 20% of the "
            "time. If you set a value, these two limits do not apply.",
            "max_lost_work_s = 300",
        ),
        Key(
            "sample_every_s",
            Value(("number",), 1.0, least=0.05, most=MAX_SECONDS),
            "Seconds between two measurements of memory, swap and disk usage.",
            "sample_every_s = 2",
        ),
        Key(
            "keep_awake",
            Value(_BOOL, default=True),
            "Prevent the machine from going to sleep during the run.",
            "keep_awake = false",
        ),
    ),
)

STAGE = Table(
    "stages",
    "A part of the run with its own settings. Stages are trained one after the other, in the order of the file. A plan "
    "without `[[stages]]` has a single stage.",
    (
        Key(
            "name", Value(_TEXT), "Name of the stage, also used in folder names. Default: its number.", 'name = "small"'
        ),
        Key(
            "from",
            Value(_TEXT, choices=("scratch", "best", "last")),
            "Initial weights: `best` (the weights of the best previous stage), `last` (the last weights of the previous stage) or "
            "`scratch` (the model in the settings). Default: `scratch` for the first stage, `best` for the others.",
            'from = "last"',
        ),
        Key(
            "settings",
            Value(("table",), {}),
            "Settings of the framework for this stage. They override those in `[settings]`.",
            "settings = { imgsz = 640, epochs = 20 }",
        ),
        Key(
            "command",
            Value(("text", "texts"), []),
            "For trainer `command`: the command for this stage. It overrides the plan's command. `{weights}` stands for the "
            "initial weights.",
            'command = "python train.py --size 640"',
        ),
        Key(
            "gate",
            Value(("table",), {}),
            "The result that the stage must reach. See `[stages.gate]`.",
            "gate = { at_least = 0.3 }",
        ),
        Key(
            "skip_if_oom",
            Value(_BOOL, default=False),
            "Measure the memory use in a short run first, and skip the stage if it does not fit into memory.",
            "skip_if_oom = true",
        ),
    ),
)

GATE = Table(
    "stages.gate",
    "The result that a stage must reach. If the stage does not reach it, no further stage starts, and the run ends as "
    "`not-learned` (exit status 3). You can relax the gate and continue with `holdfast resume RUN PLAN.toml`. By default, any value above zero "
    "passes, and so does a stage that reports no such metric.",
    (
        Key(
            "metric",
            Value(_TEXT, "mAP50-95"),
            "The metric to check: "
            + ", ".join(f"`{name}`" for name in METRICS)
            + ". Its best value in the stage is used.",
            'metric = "mAP50"',
        ),
        Key("at_least", Value(("number",), least=0), "The minimum value of the metric.", "at_least = 0.3"),
        Key(
            "must_improve",
            Value(_BOOL, default=False),
            "The mAP50-95 must also be higher than in the best previous stage.",
            "must_improve = true",
        ),
    ),
)

TABLES = (
    Table(
        "settings",
        "Settings of the framework for all stages, by the names that the framework uses."
        + "".join(
            f" {framework.settings_help}" for framework in frameworks.all_frameworks() if framework.settings_help
        ),
        None,
        _DEFAULT.settings_example,
    ),
    STAGE,
    GATE,
    Table(
        "validation",
        f"Options for validation during training that {_DETECTORS} does not offer as settings.",
        (
            Key(
                "every",
                Value(("whole",), 1, least=1),
                "Validate every N epochs; the last epoch is always validated.",
                "every = 5",
            ),
            Key(
                "batch",
                Value(("whole",), least=1),
                f"Images per validation batch. Default: the {_DETECTORS} default (for detection, twice the training batch).",
                "batch = 4",
            ),
            Key(
                "max_det",
                Value(("whole",), least=1),
                "Maximum number of boxes per image in validation. Default: the setting `max_det`.",
                "max_det = 100",
            ),
            Key(
                "best_by",
                Value(_TEXT, "fitness", choices=("fitness", "mAP50", "F1", "F2")),
                f"The metric that selects best.pt; `fitness` is the value that {_DETECTORS} computes (mAP50-95).",
                'best_by = "F2"',
            ),
            Key(
                "on_cpu",
                Value(_TEXT, "auto", choices=("auto", "always", "never")),
                "Whether to validate best.pt again on the CPU at the end. `auto` does this only if Holdfast found a "
                "problem that a faulty device can cause.",
                'on_cpu = "always"',
            ),
        ),
    ),
    Table(
        "clear_cache",
        "How often to release cached device memory (`empty_cache`); 0 means never.",
        (
            Key("epochs", Value(("whole",), 0, least=0), "Release it every N epochs.", "epochs = 1"),
            Key("steps", Value(("whole",), 0, least=0), "Release it every N optimizer steps.", "steps = 200"),
        ),
    ),
    Table(
        "budget",
        "Limits for the run.",
        (
            Key(
                "attempts",
                Value(("whole",), 10, least=1, most=MAX_ATTEMPTS),
                "Maximum number of times to start training, per stage. Planned restarts (see `[policy]`) are not counted.",
                "attempts = 20",
            ),
            Key(
                "hours",
                Value(("number",), least=0.0001, most=MAX_HOURS),
                "Time limit for the whole run. At the limit, Holdfast takes a snapshot, if possible, and stops. `holdfast resume RUN --hours N` "
                "continues with a higher limit.",
                "hours = 10",
            ),
            Key(
                "memory",
                Value(("text", "whole", "number")),
                "Memory that training may use: `12 GB`, `11.5 GiB`, or a percentage of the machine's memory. Checks, forecasts and "
                "planned restarts use this limit, but the operating system does not enforce it. Default: the memory of the machine.",
                'memory = "80%"',
            ),
        ),
    ),
    Table(
        "policy",
        "Which changes Holdfast may make after a failure, or to prevent one.",
        (
            Key(
                "devices",
                Value(("texts",), []),
                "Devices that may be used, in the order in which to try them. Default: the device in the settings, then the CPU.",
                'devices = ["mps", "cpu"]',
            ),
            Key(
                "may_change",
                Value(("texts",)),
                "The only settings that Holdfast may change. Default: all except those in `never_change`.",
                'may_change = ["batch", "workers", "validation.batch"]',
            ),
            Key(
                "never_change",
                Value(("texts",), []),
                "Settings that Holdfast must never change.",
                'never_change = ["imgsz", "device"]',
            ),
            Key(
                "planned_restarts",
                Value(_BOOL, default=True),
                "Allow Holdfast to stop a running training process and restart it from a snapshot, before memory runs out or to apply a "
                "remedy.",
                "planned_restarts = false",
            ),
        ),
    ),
    Table(
        "environment",
        "Environment variables for the training process. They override variables that are already set.",
        None,
        'PYTORCH_ENABLE_MPS_FALLBACK = "1"\nOMP_NUM_THREADS = "4"',
    ),
    Table(
        "flags",
        "For trainer `command`: the flags that the command uses for settings that Holdfast may change.",
        None,
        'batch = "--bs"\nimgsz = "--size"',
    ),
    Table(
        "rules",
        "Configuration of the rules that detect failures: the highest `severity` that a rule may report (`off`, `note`, `warn` or "
        "`fatal`), and its limits (thresholds). `holdfast rules` lists the rules, and `holdfast rules ID` shows the limits of one.",
        None,
        'overfitting = { severity = "off" }\nloss-all-zero = { steps = 50 }',
    ),
    Table(
        "hang",
        "When training is considered hung: there was no step, no batch and no output for longer than the timeout that these keys set, and "
        "two stack dumps are identical. If the processes still use the CPU, the timeout is four times as long.",
        (
            Key(
                "floor_s",
                Value(("number",), 300.0, least=0, most=MAX_SECONDS),
                "Minimum time without a step, a batch or output, in seconds.",
                "floor_s = 600",
            ),
            Key(
                "start_floor_s",
                Value(("number",), 900.0, least=0, most=MAX_SECONDS),
                "The same before the first step, because building a cache or compiling can take a long time without output.",
                "start_floor_s = 1800",
            ),
            Key(
                "factor",
                Value(("number",), 10.0, least=1, most=MAX_SECONDS),
                "Minimum time as a multiple of the longest pause so far, measured since the first step.",
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
