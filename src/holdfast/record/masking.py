"""What may be written down of a command and of an environment: never a secret, and as little else masked as possible."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MASK = "***"
UNREADABLE = "\ufffd"
"""Stands for bytes in an argument that are no text."""
SHORTEST_SECRET = 6
"""A shorter value would be found in innocent text."""

_SECRET_WORDS = frozenset(
    (
        *("key", "apikey", "token", "secret", "secrets", "credential", "credentials", "auth", "authorization"),
        *("password", "passwords", "passwd", "pwd", "passphrase"),
    )
)
_VOCABULARY = frozenset(("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image"))
"""`--pad-token` and its like name a word of a vocabulary, not a secret."""

_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{15,}"
    r"|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\b\w[\w+.-]{0,30}://[^/\s:@]*):[^/\s]+@")
_URL_ARGUMENT = re.compile(r"([?&;])([\w.-]+)=([^&;#\s]+)")
_QUOTED_PAIR = re.compile(r"""((["'])([\w.-]+)\2\s*:\s*)(["'])(.*?)\4""")
_SHELL_PAIR = re.compile(r"""(-{0,2}[A-Za-z_][\w.-]*)(?:=|(?<=[\w-])\s+)["']?([^\s"';&|]+)""")
"""Inside `bash -c '...'`: NAME=value, and --name value."""
_NAME = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.\-/@]*")

_HARMLESS = re.compile(r"\d{1,5}|true|false|none|null", re.IGNORECASE)
"""`--num-key-value-heads 8`: no secret is that short."""

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
_LONGEST_VALUE = 1000


def mask_command(argv: Sequence[str]) -> list[str]:
    masked: list[str] = []
    value_follows = False
    for argument in map(_readable, argv):
        if value_follows and not argument.startswith("--"):
            masked.append(argument if _HARMLESS.fullmatch(argument) else MASK)
            value_follows = False
            continue
        masked.append(_masked(argument))
        value_follows = argument.startswith("-") and "=" not in argument and names_a_secret(argument)
    return masked


def secrets_in(argv: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """The values themselves, so that they can be taken out of whatever else is about to be written down."""
    # PWD and SSH_AUTH_SOCK sound like secrets, and are places.
    found = {value for name, value in env.items() if names_a_secret(name) and not _is_place(value)}
    for before, argument in zip(["", *argv], argv, strict=False):
        name, equals, value = argument.partition("=")
        if equals and _NAME.fullmatch(name) and names_a_secret(name):
            found.add(value)
        elif before.startswith("-") and "=" not in before and names_a_secret(before):
            found.add(argument)
        elif " " in argument:
            found.update(match[2] for match in _SHELL_PAIR.finditer(argument) if names_a_secret(match[1]))
    return frozenset(value for value in map(_readable, found) if len(value) >= SHORTEST_SECRET and not value.isdigit())


def _is_place(value: str) -> bool:
    return value.startswith("/") and os.path.lexists(value)


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def allowed_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that change how a training computes; everything else in an environment is nobody's business."""
    kept: dict[str, str] = {}
    for name in sorted(env):
        if _ALLOWED.fullmatch(name):
            kept[name] = MASK if names_a_secret(name) else _masked(env[name])[:_LONGEST_VALUE]
    return kept


def names_a_secret(name: str) -> bool:
    """Whole words only: `--api-key`, `wandb.token` and `dbPassword` do; `--keypoints`, `--tokenizer` and `monkey` do not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]
    secret = _SECRET_WORDS.intersection(words)
    return bool(secret) and not (secret == {"token"} and _VOCABULARY.intersection(words))


def _masked(text: str) -> str:
    name, equals, value = text.partition("=")
    if equals and _NAME.fullmatch(name):
        secret = value and names_a_secret(name) and not _HARMLESS.fullmatch(value)
        return f"{name}={MASK}" if secret else f"{name}={_masked(value)}"
    return _masked_inside(text)


def _masked_inside(text: str) -> str:
    if " " in text:
        text = _SHELL_PAIR.sub(lambda m: m[0].replace(m[2], MASK) if names_a_secret(m[1]) else m[0], text)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _URL_ARGUMENT.sub(lambda m: f"{m[1]}{m[2]}={MASK if names_a_secret(m[2]) else m[3]}", text)
    text = _QUOTED_PAIR.sub(lambda m: f"{m[1]}{m[4]}{MASK}{m[4]}" if names_a_secret(m[3]) else m[0], text)
    return _SHAPES.sub(MASK, _BEARER.sub(rf"\1 {MASK}", text))
