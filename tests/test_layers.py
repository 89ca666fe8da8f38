"""The architecture, held by a test: imports go downward only."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
LAYERS = [
    *("probe", "schema", "storage", "machine", "process", "testing", "diagnosis", "remedies"),
    *("importers", "supervisor", "preflight", "render", "simulator", "launch", "cli"),
]
"""From the bottom up: a layer may import those before it."""
PURE = "diagnosis is pure: it sees events, not the machine"
FORBIDDEN = {(pure, impure): PURE for pure in ("diagnosis", "remedies", "testing") for impure in ("machine", "process")}
SHARED_BY_PROBE = {
    "holdfast.probe",
    "holdfast.probe.holdfast_probe",
    "holdfast.probe.holdfast_probe.protocol",
    "holdfast.probe.holdfast_probe.heartbeat",
}


def modules(layer):
    return sorted((ROOT / layer).rglob("*.py"))


def imports(path):
    """Every absolute name that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS[1:] if (ROOT / layer).is_dir()])
def test_imports_go_downward(layer):
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for path in modules(layer):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "holdfast" or len(parts) == 1 or parts[1] not in LAYERS:
                continue
            assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {name}: {layer} may import {allowed}"
            assert (layer, parts[1]) not in FORBIDDEN, f"{path.relative_to(ROOT)}: {FORBIDDEN[layer, parts[1]]}"
            if parts[1] == "probe":
                assert any(name == shared or name.startswith(f"{shared}.") for shared in SHARED_BY_PROBE), name


def test_probe_needs_the_standard_library_and_torch_only():
    """What runs in someone's training imports nothing else at its top, and never the rest of Holdfast."""
    for path in modules("probe"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | {"holdfast_probe"}, f"{path.name}: {name}"
        assert not [name for name in imports(path) if name.partition(".")[0] == "holdfast"], path


def test_probe_is_python_3_9():
    for path in modules("probe"):
        ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("layer", ["diagnosis", "remedies"])
def test_diagnosis_has_no_clock_no_process_and_no_torch(layer):
    for path in modules(layer):
        taken = {name.partition(".")[0] for name in imports(path)}
        assert not taken & {"time", "datetime", "subprocess", "os", "psutil", "torch", "random", "socket"}, path


def test_every_layer_is_in_the_list():
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found <= set(LAYERS), found - set(LAYERS)
