"""The architecture, held by a test: which package may import which, exactly."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
USES = {
    "cli": "frameworks importers launch preflight render schema simulator storage supervisor",
    "diagnosis": "frameworks schema testing",
    "frameworks": "",
    "frameworks.base": "schema",
    "frameworks.ultralytics": "diagnosis frameworks.base importers machine preflight probe process remedies render schema storage supervisor testing",
    "importers": "diagnosis frameworks process schema storage",
    "launch": "diagnosis frameworks preflight process remedies render schema storage supervisor",
    "machine": "frameworks schema storage",
    "preflight": "diagnosis frameworks machine probe process schema storage supervisor",
    "process": "probe schema storage",
    "remedies": "diagnosis frameworks schema",
    "render": "diagnosis frameworks preflight probe process remedies schema storage",
    "schema": "frameworks probe",
    "simulator": "diagnosis machine process render schema storage supervisor",
    "storage": "frameworks probe schema",
    "supervisor": "diagnosis frameworks machine probe process remedies schema storage",
    "testing": "frameworks schema storage",
}
"""Package -> the packages that it imports when it runs. They form no cycle."""
NAMES = {
    "diagnosis": "storage",
    "frameworks": "frameworks.base",
    "frameworks.base": "diagnosis importers preflight remedies storage",
    "preflight": "frameworks.base",
    "process": "machine",
    "remedies": "frameworks.base",
    "render": "importers",
    "storage": "frameworks.base",
}
"""Package -> further packages that it only names in annotations (under TYPE_CHECKING)."""
SHARED_BY_PROBE = {"guard", "heartbeat", "protocol", "redact", "secret_names"}
"""Modules of the probe that the rest of Holdfast may import and use."""
PROGRAMS = {"env_scripts", "image_scan", "op_check", "verify_checkpoint"}
"""Modules that run in the user's Python: only their path is used."""


def package_of(parts):
    """Return the package of a module. The registry of frameworks, their base class and each framework count separately."""
    if parts[0] != "frameworks" or len(parts) == 1:
        return parts[0]
    return ".".join(parts[:2]) if (ROOT / "frameworks" / parts[1]).is_dir() or parts[1] == "base" else parts[0]


def modules(package="", *, probe=False):
    """Yield the files of Holdfast, those that run inside a training only with `probe`."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if probe or "probe" not in path.relative_to(ROOT).parts[:3]:
            yield path


def imports(path):
    """Yield (name, whether only for annotations) of each import of a file, wherever in the file it is."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((f"{node.module}.{alias.name}", id(node) in typing_only) for alias in node.names)


def edges():
    """Return ({package: packages that it uses}, {package: packages that it only names})."""
    uses, names = {}, {}
    for path in modules():
        parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
        if len(path.relative_to(ROOT).parts) == 1:
            continue  # holdfast/__init__.py and __main__.py
        package = package_of(parts)
        uses.setdefault(package, set())
        for name, typing_only in imports(path):
            target = name.split(".")[1:] if name.startswith("holdfast.") else []
            if target and (ROOT / target[0]).is_dir() and package_of(target) != package:
                (names if typing_only else uses).setdefault(package, set()).add(package_of(target))
    return uses, {package: found - uses[package] for package, found in names.items() if found - uses[package]}


def test_packages_import_exactly_these():
    """An edge that is new or no longer needed is a decision: change the tables above with it."""
    uses, names = edges()
    assert {package: " ".join(sorted(found)) for package, found in uses.items()} == USES
    assert {package: " ".join(sorted(found)) for package, found in names.items()} == NAMES


def test_packages_form_no_cycle():
    tuple(TopologicalSorter({package: found.split() for package, found in USES.items()}).static_order())


def test_only_shared_modules_of_the_probe_are_imported():
    for path in modules():
        for name, _ in imports(path):
            if name.startswith("holdfast.probe.holdfast_probe."):
                module = name.removeprefix("holdfast.probe.holdfast_probe.").partition(".")[0]
                assert module in SHARED_BY_PROBE | PROGRAMS, f"{path.relative_to(ROOT)}: {name}"


def test_probe_needs_the_standard_library_and_torch_only():
    """What runs in someone's training imports nothing else at its top, and never the rest of Holdfast."""
    for path in _probe_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | {"holdfast_probe"}, f"{path.name}: {name}"
        assert not [name for name, _ in imports(path) if name.partition(".")[0] == "holdfast"], path


def test_probe_is_python_3_9():
    for path in _probe_files():
        ast.parse(path.read_text(), feature_version=(3, 9))


def _probe_files():
    return [path for path in modules(probe=True) if "probe" in path.relative_to(ROOT).parts[:3]]


@pytest.mark.parametrize("package", ["diagnosis", "remedies"])
def test_diagnosis_has_no_clock_no_process_and_no_torch(package):
    for path in modules(package):
        taken = {name.partition(".")[0] for name, _ in imports(path)}
        assert not taken & {"time", "datetime", "subprocess", "os", "psutil", "torch", "random", "socket"}, path


def test_files_and_functions_are_short():
    """One subject per file: at most 600 lines, except for the timeline of events; and at most 60 lines per function."""
    for path in modules(probe=True):
        text = path.read_text()
        assert text.count("\n") <= 600 or path == ROOT / "schema" / "events.py", path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path.relative_to(ROOT)}: {node.name}"
