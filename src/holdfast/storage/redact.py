"""Removes secrets from events, plans and environments before they are written.

Secrets are replaced in the string values of typed events, never in encoded text. Keys, tags and Holdfast's own
vocabulary stay unchanged, even if someone uses one of these words as a password.

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

from holdfast.frameworks import all_frameworks
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
"""Replaces undecodable bytes in a path."""
MAX_COMMAND = 100_000
"""Maximum number of characters of a command in an event: the length of a journal line is limited."""
MAX_CANDIDATES = 10_000

VOCABULARY = frozenset(
    (
        *("event", "rule", "severity", "confidence", "cause", "verdict", "answer", "action", "gate", "signal"),
        *("stopped_by", "stop_reason", "code", "how", "stream", "source", "step_source", "matches", "metric", "seen"),
        *("missing", "tuning", "run", "name", "folder", "python", "torch", "platform", "holdfast", "device"),
        *("batch", "value", "optimizer", "optimizers", "scheduler"),
    )
)
"""Fields with Holdfast's own words, a program version, or the name of a run or stage: they stay unchanged."""
SENTENCES = frozenset(
    (
        *("message", "evidence", "remedies", "text", "last_lines", "detail", "why", "reason", "gate_message"),
        *("expects", "planned", "left_out", "costs"),
    )
)
"""Fields with text for people: here a secret that is an ordinary word is replaced too, if it is a separate word."""
PATHS = frozenset(
    (
        *("path", "kept", "cwd", "executable", "stack_file", "checkpoint", "fallback", "weights", "best", "last"),
        "results",
    )
)

NUMBERS = (events.Step, events.Steps, events.Memory, events.Sample, events.Checksum, events.Gradients, events.Metrics)
"""Events that contain only numbers, under names chosen by Holdfast or the model. There may be a million of them."""

_ALLOWED = re.compile(
    r"(?:OMP|MKL|KMP|GOMP|OPENBLAS|VECLIB|NUMEXPR|PYTORCH|CUDNN|NCCL|GLOO|MALLOC|HOLDFAST)_\w+|TORCH\w*"
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
    """Replaces secrets in data that is about to be written."""

    def event(self, event: Record) -> Record:
        """Return the event without secrets; the same object if there is nothing to replace."""
        if isinstance(event, NUMBERS):
            return event
        redacted: Record = self._redact_struct(event)
        return redacted

    def plan(self, plan: Plan) -> Plan:
        """Return the plan without secrets. Folders stay unchanged: a resumed run starts there."""
        return msgspec.structs.replace(
            plan,
            command=self._redact_plan_words(plan.command),
            stages=[
                msgspec.structs.replace(
                    stage,
                    command=self._redact_plan_words(stage.command),
                    settings=self._redact_plan_values(stage.settings),
                )
                for stage in plan.stages
            ],
            settings=self._redact_plan_values(plan.settings),
            overrides=self._redact_plan_values(plan.overrides),
            environment=self._redact_plan_values(plan.environment),
            on_event=self._redact_command_line(plan.on_event),
            resume_with=self._redact_command_line(plan.resume_with),
            checkpoint=None
            if plan.checkpoint is None
            else self._keep_bytes(plan.checkpoint, self.name(plan.checkpoint)),
        )

    def restore(self, event: Record) -> Record:
        """Return the event with file names as they are on disk, if the record could not contain them."""
        if isinstance(event, NUMBERS):
            return event
        restored: Record = _replace_fields(
            event, {name: self._restore_paths(name, getattr(event, name)) for name in _fields(event)}
        )
        return restored

    def value_for_message(self, value: Any, name: str = "") -> Any:
        """Return a value without secrets, to quote it in a message. `name` is its key."""
        if isinstance(value, str):
            return self.value(name, value)
        if isinstance(value, dict):
            return {key: self.value_for_message(item, str(key)) for key, item in value.items()}
        if isinstance(value, list) and not names_a_secret(name):  # may be a command: an option followed by its value
            words = iter(self.command([item for item in value if isinstance(item, str)]))
            return [next(words) if isinstance(item, str) else self.value_for_message(item) for item in value]
        if isinstance(value, list):
            return [self.value_for_message(item, name) for item in value]
        return value

    # --- events -------------------------------------------------------------------------------------------------------

    def _redact_struct(self, struct: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in _fields(struct):
            value = getattr(struct, name)
            if value is None or isinstance(value, (int, float, Enum)):
                continue
            if name in VOCABULARY:
                changes[name] = readable(value) if type(value) is str else value
            elif name == "command":
                changes[name] = _limit_length(self.command(value))
            elif name == "last_lines" and isinstance(struct, events.AttemptEnded):
                changes[name] = self.lines(value)
            else:
                changes[name] = self._redact_field(name, value)
        return _replace_fields(struct, changes)

    def _redact_field(self, field: str, value: Any) -> Any:
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self.text(value) if field in SENTENCES else self.name(value)
        if isinstance(value, msgspec.Struct):
            return self._redact_struct(value)
        if isinstance(value, dict):
            return {
                self._make_key_readable(key): self._redact_dict_item(field, key, item) for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._redact_field(field, item) for item in value]
        return value

    def _make_key_readable(self, key: Any) -> Any:
        return readable(key) if isinstance(key, str) else key

    def _redact_dict_item(self, field: str, key: Any, item: Any) -> Any:
        if isinstance(item, str) and isinstance(key, str):
            return self.value(key, item)
        return self._redact_field(field, item)

    # --- plans --------------------------------------------------------------------------------------------------------

    def _redact_plan_words(self, command: Sequence[str]) -> list[str]:
        return [self._keep_bytes(*pair) for pair in zip(command, self.command(command), strict=True)]

    def _redact_command_line(self, line: str | None) -> str | None:
        """Redact a command in one string; return it unchanged if it contains no secret."""
        if line is None:
            return None
        try:
            words = shlex.split(line)
        except ValueError:
            return self.name(line)
        redacted = self._redact_plan_words(words)
        return line if redacted == words else shlex.join(redacted)

    def _redact_plan_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._redact_setting(name, value) for name, value in values.items()}

    def _redact_setting(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._redact_setting(str(key), item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._redact_setting(name, item) for item in value]
        return self._keep_bytes(value, self.value(name, value)) if isinstance(value, str) else value

    @staticmethod
    def _keep_bytes(original: str, redacted: str) -> str:
        """Return the original, with undecodable bytes, unless it contains a secret: a plan may be run again."""
        return original if redacted == readable(original) else redacted

    # --- files --------------------------------------------------------------------------------------------------------

    def _restore_paths(self, field: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._restore_path(value) if field in PATHS else value
        if isinstance(value, msgspec.Struct):
            return self.restore(value)
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            return [self.restore(item) for item in value]
        return value

    def _restore_path(self, path: str) -> str:
        """Return the file whose redacted name is this path; the path itself if there is none, or more than one."""
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
    """Return a redactor for the secrets of a plan and an environment. `places` are paths that must stay valid."""
    if plan is None:
        return Redactor((), environ, [str(place) for place in places])
    commands = [plan.command, *(stage.command for stage in plan.stages)]
    kept_paths = (plan.cwd, plan.python or "", *map(str, places))
    redactor = Redactor(commands, {**environ, **plan.environment}, kept_paths)
    redactor.plan(plan)  # it learns the secrets in settings and in other commands
    return redactor


def replay_redacted(run: RunFolder, plan: Plan | None = None) -> Iterator[Entry]:
    """Replay the record of a run without secrets. With the plan, the secrets of the command are removed too."""
    return redact_entries(replay(run), redactor_for(plan, os.environ, [run.path]))


def redact_entries(entries: Iterable[Entry], redactor: Redactor) -> Iterator[Entry]:
    """Yield the entries without secrets. Entries written by the training process have not been redacted before."""
    for entry in entries:
        event = redactor.event(entry.event)
        yield entry if event is entry.event else entry._replace(event=event)


def restore_entries(entries: Iterable[Entry], redactor: Redactor) -> Iterator[Entry]:
    """Yield the entries with the real paths of files, as needed to resume a run."""
    for entry in entries:
        yield entry._replace(event=redactor.restore(entry.event))


def allowed_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how a training computes. All others are private."""
    redactor = Redactor()
    prefixes = tuple(prefix for framework in all_frameworks() for prefix in framework.environment_prefixes)
    return {
        name: MASK if names_a_secret(name) else redactor.value(name, readable(env[name]))[:MAX_VALUE]
        for name in sorted(env)
        if _ALLOWED.fullmatch(name) or name.startswith(prefixes)
    }


def _fields(struct: Any) -> tuple[str, ...]:
    return type(struct).__struct_fields__ if isinstance(struct, msgspec.Struct) else ()


def _replace_fields(struct: Any, values: dict[str, Any]) -> Any:
    changes = {name: value for name, value in values.items() if value != getattr(struct, name)}
    return msgspec.structs.replace(struct, **changes) if changes else struct


def _limit_length(command: list[str]) -> list[str]:
    kept: list[str] = []
    left = MAX_COMMAND
    for argument in command:
        if left <= 0:
            return [*kept, "..."]
        kept.append(argument if len(argument) <= left else argument[:left] + "...")
        left -= len(argument)
    return kept
