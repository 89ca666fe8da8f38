"""Makes `schema/ultralytics_settings.py` again from the Ultralytics that is installed: names, kinds, bounds and defaults.

Run it after an upgrade: `.venv/bin/python tools/write_ultralytics_settings.py`. With --check it only says whether the
file is out of date. Ultralytics itself is not imported: its tables are read as text.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "schema" / "ultralytics_settings.py"
HEAD = '''"""The settings of Ultralytics that a training knows: what each may hold, and what it is where nobody sets it.

Made by tools/write_ultralytics_settings.py from Ultralytics {version}; a test compares it with the version that is installed.
"""

from __future__ import annotations

from holdfast.schema.values import Value

SETTINGS = {{
{settings}
}}

OF_OTHER_MODES = frozenset(
    {{
{others}
    }}
)
"""Settings of prediction, export and tracking: a training takes them and does nothing with them."""

OPTIMIZERS = ({optimizers})
IMAGE_SUFFIXES = frozenset(
    {{
{images}
    }}
)
"""Endings of the files that it reads as images."""
'''
BY_HAND: dict[str, dict[str, Any]] = {
    "task": {"kinds": ("text",)},
    "mode": {"kinds": ("text",), "choices": ("train",)},
    "model": {"kinds": ("text",)},
    "data": {"kinds": ("text",)},
    "imgsz": {"kinds": ("whole",), "least": 32},
    "batch": {"kinds": ("whole", "number")},
    "cache": {"kinds": ("bool", "text"), "choices": ("ram", "disk")},
    "device": {"kinds": ("text", "whole", "list")},
    "project": {"kinds": ("text",)},
    "name": {"kinds": ("text",)},
    "pretrained": {"kinds": ("bool", "text")},
    "resume": {"kinds": ("bool", "text")},
    "amp": {"kinds": ("bool", "text"), "choices": ("fp16", "bf16", "fp32")},
    "fraction": {"kinds": ("whole", "number", "list")},
    "freeze": {"kinds": ("whole", "list")},
    "compile": {"kinds": ("bool", "text")},
    "scale": {"kinds": ("number", "list"), "least": 0, "most": 1},
    "quantize": {"kinds": ("whole", "text")},
    "classes": {"kinds": ("whole", "list")},
    "embed": {"kinds": ("list",)},
    "distill_model": {"kinds": ("text",)},
    "source": {"kinds": ("text",)},
    "format": {"kinds": ("text",)},
    "cfg": {"kinds": ("text",)},
    "tracker": {"kinds": ("text",)},
    "split": {"kinds": ("text",), "choices": ("train", "val", "test")},
    "copy_paste_mode": {"kinds": ("text",), "choices": ("flip", "mixup")},
    "auto_augment": {"kinds": ("text",), "choices": ("randaugment", "autoaugment", "augmix")},
}
"""What its tables do not say."""
AT_LEAST = dict.fromkeys(("workers", "close_mosaic", "warmup_epochs", "box", "cls", "dfl", "pose", "kobj", "rle"), 0)
AT_LEAST |= {"angle": 0, "dlog": 0, "dgrad": 0, "dis": 0, "save_period": -1, "line_width": 1, "time": 0}
BETWEEN = {"degrees": (-180, 180), "shear": (-180, 180)}
"""Bounds that it does not check, and beyond which nothing sensible comes out."""


def home() -> Path:
    spec = importlib.util.find_spec("ultralytics")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("Ultralytics is not installed here: pip install -e '.[dev]'")
    return Path(spec.submodule_search_locations[0])


def tables(path: Path) -> dict[str, Any]:
    """The constants of a module that are plain collections."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
            try:
                found[node.targets[0].id] = ast.literal_eval(value)
            except ValueError:
                continue
    return found


def optimizers(trainer: Path) -> list[str]:
    for node in ast.walk(ast.parse(trainer.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "optimizers":
            return sorted(ast.literal_eval(node.value))
    sys.exit(f"{trainer} has no list of optimizers any more")


def of_other_modes(folder: Path) -> list[str]:
    """What stands under prediction, drawing, export or tracking, and is read by no code on a training's way."""
    ways = [folder / "engine" / "trainer.py", folder / "engine" / "validator.py", *(folder / "data").rglob("*.py")]
    ways += [folder / "utils" / "loss.py", *(folder / "nn").rglob("*.py")]
    ways += [*(folder / "models").rglob("train.py"), *(folder / "models").rglob("val.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in ways)
    others, names = False, []
    for line in (folder / "cfg" / "default.yaml").read_text(encoding="utf-8").splitlines():
        if title := re.match(r"# (\w.*?) -{5,}$", line):
            others = title[1].split()[0] in ("Predict", "Visualize", "Export", "Tracker")
        elif others and (key := re.match(r"(\w+):", line)) and not re.search(rf"\b(args|cfg|hyp)\.{key[1]}\b", code):
            names.append(key[1])
    return sorted(names)


def holds(name: str, default: Any, known: dict[str, Any]) -> dict[str, Any]:
    kinds = {"CFG_FLOAT_KEYS": "number", "CFG_FRACTION_KEYS": "number", "CFG_INT_KEYS": "whole"}
    kinds |= {"CFG_BOOL_KEYS": "bool", "CFG_STR_KEYS": "text"}
    kind = next((kind for table, kind in kinds.items() if name in known[table]), None)
    value: dict[str, Any] = {"kinds": (kind,)} if kind else {}
    if name in known["CFG_FRACTION_KEYS"]:
        value |= {"least": 0, "most": 1}
    value |= {"least": known["CFG_INT_MIN"][name]} if name in known["CFG_INT_MIN"] else {}
    value |= {"least": AT_LEAST[name]} if name in AT_LEAST else {}
    value |= dict(zip(("least", "most"), BETWEEN[name], strict=True)) if name in BETWEEN else {}
    if name in BY_HAND:
        value = BY_HAND[name]
    if not value:
        sys.exit(f"{name} is new in Ultralytics and its tables do not say what it holds: add it to BY_HAND")
    return {"kinds": value["kinds"], "default": default} | value


def text() -> str:
    folder = home()
    known = tables(folder / "cfg" / "__init__.py")
    settings = yaml.safe_load((folder / "cfg" / "default.yaml").read_text(encoding="utf-8"))
    names = optimizers(folder / "engine" / "trainer.py")
    lines = []
    for name, default in settings.items():
        value = holds(name, default, known)
        if name == "optimizer":
            value["choices"] = tuple(names)
        elif name == "task":
            value["choices"] = known["TASKS"]
        given = ", ".join(f"{key}={what!r}" for key, what in value.items() if key != "kinds" and what is not None)
        lines.append(f"    {name!r}: Value({value['kinds']!r}{', ' + given if given else ''}),")
    version = importlib.metadata.version("ultralytics")
    formats = sorted(tables(folder / "data" / "utils.py")["IMG_FORMATS"])
    made = HEAD.format(
        version=version,
        settings="\n".join(lines),
        others="\n".join(f"        {name!r}," for name in of_other_modes(folder)),
        optimizers=", ".join(repr(name) for name in names),
        images="\n".join(f"        {ending!r}," for ending in formats),
    )
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=made, capture_output=True, text=True, check=True).stdout


def main() -> int:
    made = text()
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == made:
        return 0
    if "--check" in sys.argv:
        print(f"{TARGET} is out of date: {sys.executable} {__file__}")
        return 1
    TARGET.write_text(made, encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
