"""What may be written down: events, plans and environments without the secrets in them.

Secrets are replaced in the string values of typed events, never in encoded text: keys, tags and our own vocabulary stay what
they are, whatever word somebody uses as a password.

    redactor = redactor_for(plan, os.environ, places=[run.path])
    journal.append(redactor.event(event))
    write(redactor.plan(plan))
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.probe.holdfast_probe import redact as shared
from holdfast.probe.holdfast_probe.redact import MASK, readable
from holdfast.probe.holdfast_probe.secret_names import names_a_secret
from holdfast.schema import events
from holdfast.storage.journal import replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder
    from holdfast.storage.journal import Entry

    Record = TypeVar("Record", bound=msgspec.Struct)

UNREADABLE = "\ufffd"
"""Stands for bytes in a path that are no text."""
MAX_COMMAND = 100_000
"""Characters of a command in an event: a line of the journal has a bound."""
MAX_CANDIDATES = 10_000

VOCABULARY = frozenset(
    (
        *(
            "event",
            "rule",
            "severity",
            "confidence",
            "cause",
            "verdict",
            "answer",
            "action",
            "gate",
            "signal",
            "stopped_by",
        ),
        *("how", "stream", "source", "step_source", "matches", "metric", "kinds", "tuning", "run", "name", "folder"),
        *(
            "python",
            "torch",
            "platform",
            "holdfast",
            "device",
            "batch",
            "value",
            "optimizer",
            "optimizers",
            "scheduler",
        ),
    )
)
"""Fields whose words are ours, a program's version, or the name that the user gave to a run or a stage: they stay as they are."""
SENTENCES = frozenset(
    (
        *(
            "message",
            "evidence",
            "remedies",
            "text",
            "last_words",
            "detail",
            "why",
            "reason",
            "gate_message",
            "expects",
        ),
        *("planned", "left_out", "costs"),
    )
)
"""Fields that people read: here an ordinary word is replaced too, where it stands alone."""
PATHS = frozenset(
    (
        *("path", "kept", "cwd", "executable", "stack_file", "checkpoint", "fallback", "weights", "best", "last"),
        "results",
    )
)

NUMBERS = (events.Step, events.Steps, events.Memory, events.Sample, events.Checksum, events.Gradients, events.Metrics)
"""Events that hold numbers under names of ours or of a model's: there may be a million of them."""

_ALLOWED = re.compile(
    r"(?:OMP|MKL|KMP|GOMP|OPENBLAS|VECLIB|NUMEXPR|PYTORCH|CUDNN|NCCL|GLOO|YOLO|MALLOC|HOLDFAST)_\w+|TORCH\w*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS|CUBLAS_WORKSPACE_CONFIG"
    r"|NVIDIA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION"
    r"|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|MASTER_ADDR|MASTER_PORT"
    r"|SLURM_(?:JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|RESTART_COUNT|CPUS_PER_TASK)"
    r"|PYTHON(?:HASHSEED|UNBUFFERED|FAULTHANDLER|MALLOC|OPTIMIZE|NOUSERSITE|DONTWRITEBYTECODE|WARNINGS)"
    r"|LD_PRELOAD|DYLD_INSERT_LIBRARIES|OBJC_DISABLE_INITIALIZE_FORK_SAFETY|CONDA_DEFAULT_ENV"
    r"|TOKENIZERS_PARALLELISM|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
)
MAX_VALUE = 1000


class Redactor(shared.Redactor):
    """Replaces secrets in what is about to be written."""

    def event(self, event: Record) -> Record:
        """The event as it may be written; the same object where there is nothing to replace."""
        if isinstance(event, NUMBERS):
            return event
        redacted: Record = self._struct(event)
        return redacted

    def plan(self, plan: Plan) -> Plan:
        """The plan as it may be written. Folders stay as they are: a resumed run starts there."""
        return msgspec.structs.replace(
            plan,
            command=self._words(plan.command),
            stages=[
                msgspec.structs.replace(
                    stage, command=self._words(stage.command), settings=self._values(stage.settings)
                )
                for stage in plan.stages
            ],
            settings=self._values(plan.settings),
            overrides=self._values(plan.overrides),
            environment=self._values(plan.environment),
            on_event=self._line(plan.on_event),
            resume_with=self._line(plan.resume_with),
            checkpoint=None if plan.checkpoint is None else self._exact(plan.checkpoint, self.name(plan.checkpoint)),
        )

    def restore(self, event: Record) -> Record:
        """The event with its files as they are called on the disk, where the record could not say so."""
        if isinstance(event, NUMBERS):
            return event
        restored: Record = _with(event, {name: self._files(name, getattr(event, name)) for name in _fields(event)})
        return restored

    def given(self, value: Any, name: str = "") -> Any:
        """A value as it may be quoted in a message about it. `name`: under which it was given."""
        if isinstance(value, str):
            return self.value(name, value)
        if isinstance(value, dict):
            return {key: self.given(item, str(key)) for key, item in value.items()}
        if isinstance(value, list) and not names_a_secret(name):  # perhaps a command: an option, and then its value
            words = iter(self.command([item for item in value if isinstance(item, str)]))
            return [next(words) if isinstance(item, str) else self.given(item) for item in value]
        if isinstance(value, list):
            return [self.given(item, name) for item in value]
        return value

    # --- events -------------------------------------------------------------------------------------------------------

    def _struct(self, struct: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in _fields(struct):
            value = getattr(struct, name)
            if value is None or isinstance(value, (int, float, Enum)):
                continue
            if name in VOCABULARY:
                changes[name] = readable(value) if type(value) is str else value
            elif name == "command":
                changes[name] = _bounded(self.command(value))
            elif name == "last_words" and isinstance(struct, events.AttemptEnded):
                changes[name] = self.lines(value)
            else:
                changes[name] = self._any(name, value)
        return _with(struct, changes)

    def _any(self, field: str, value: Any) -> Any:
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self.text(value) if field in SENTENCES else self.name(value)
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if isinstance(value, dict):
            return {self._key(key): self._item(field, key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._any(field, item) for item in value]
        return value

    def _key(self, key: Any) -> Any:
        return readable(key) if isinstance(key, str) else key

    def _item(self, field: str, key: Any, item: Any) -> Any:
        if isinstance(item, str) and isinstance(key, str):
            return self.value(key, item)
        return self._any(field, item)

    # --- plans --------------------------------------------------------------------------------------------------------

    def _words(self, command: Sequence[str]) -> list[str]:
        return [self._exact(*pair) for pair in zip(command, self.command(command), strict=True)]

    def _line(self, line: str | None) -> str | None:
        """A command in one string; as it stands where nothing in it is secret."""
        if line is None:
            return None
        try:
            words = shlex.split(line)
        except ValueError:
            return self.name(line)
        kept = self._words(words)
        return line if kept == words else shlex.join(kept)

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._nested(name, value) for name, value in values.items()}

    def _nested(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._nested(str(key), item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._nested(name, item) for item in value]
        return self._exact(value, self.value(name, value)) if isinstance(value, str) else value

    @staticmethod
    def _exact(given: str, redacted: str) -> str:
        """A plan is run again: bytes that are no text stay in it."""
        return given if redacted == readable(given) else redacted

    # --- files --------------------------------------------------------------------------------------------------------

    def _files(self, field: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._file(value) if field in PATHS else value
        if isinstance(value, msgspec.Struct):
            return self.restore(value)
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            return [self.restore(item) for item in value]
        return value

    def _file(self, path: str) -> str:
        """The one file that the record would call so; the path as it is where there is none, or more than one."""
        if MASK not in path and UNREADABLE not in path:
            return path
        pattern = re.sub(r"(?:\[\*\]){3}|" + UNREADABLE, "*", glob.escape(path))
        matching = []
        for count, candidate in enumerate(glob.iglob(pattern)):  # noqa: PTH207 - a pattern, not a path
            if count >= MAX_CANDIDATES:
                break
            if self.name(candidate) == path:
                matching.append(candidate)
        return matching[0] if len(matching) == 1 else path


def redactor_for(
    plan: Plan | None = None, environ: Mapping[str, str] = os.environ, places: Iterable[str | Path] = ()
) -> Redactor:
    """Knows the secrets of a plan and of an environment. `places` are paths that must stay valid."""
    if plan is None:
        return Redactor((), environ, [str(place) for place in places])
    commands = [plan.command, *(stage.command for stage in plan.stages)]
    ours = (plan.cwd, plan.python or "", *map(str, places))
    redactor = Redactor(commands, {**environ, **plan.environment}, ours)
    redactor.plan(plan)  # what it finds in settings and in other commands it knows from then on
    return redactor


def shown(run: RunFolder, plan: Plan | None = None) -> Iterator[Entry]:
    """The record of a run as it may be shown. With the plan also the secrets of the command are known."""
    return redacted(replay(run), redactor_for(plan, os.environ, [run.path]))


def redacted(entries: Iterable[Entry], redactor: Redactor) -> Iterator[Entry]:
    """Entries of a record as they may be shown: what the training's own process wrote has passed no redactor of ours."""
    for entry in entries:
        event = redactor.event(entry.event)
        yield entry if event is entry.event else entry._replace(event=event)


def restored(entries: Iterable[Entry], redactor: Redactor) -> Iterator[Entry]:
    """Entries of a record as a resumed run needs them: with paths that lead to files."""
    for entry in entries:
        yield entry._replace(event=redactor.restore(entry.event))


def allowed_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that change how a training computes; everything else in an environment is nobody's business."""
    redactor = Redactor()
    return {
        name: MASK if names_a_secret(name) else redactor.value(name, readable(env[name]))[:MAX_VALUE]
        for name in sorted(env)
        if _ALLOWED.fullmatch(name)
    }


def _fields(struct: Any) -> tuple[str, ...]:
    return type(struct).__struct_fields__ if isinstance(struct, msgspec.Struct) else ()


def _with(struct: Any, values: dict[str, Any]) -> Any:
    changes = {name: value for name, value in values.items() if value != getattr(struct, name)}
    return msgspec.structs.replace(struct, **changes) if changes else struct


def _bounded(command: list[str]) -> list[str]:
    kept: list[str] = []
    left = MAX_COMMAND
    for argument in command:
        if left <= 0:
            return [*kept, "..."]
        kept.append(argument if len(argument) <= left else argument[:left] + "...")
        left -= len(argument)
    return kept
