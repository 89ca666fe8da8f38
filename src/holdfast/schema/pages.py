"""Docstrings that are shown to users, even if Python drops docstrings (`-OO`, PYTHONOPTIMIZE=2)."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def read_page(module: ModuleType) -> str:
    """Return the docstring of a module as written; read it from the source if Python dropped it."""
    return module.__doc__ or _get_docstring(_parse_source(module), clean=False)


def to_id(module: ModuleType) -> str:
    """Return the id of a rule or a check: the name of its module in kebab case."""
    return module.__name__.rpartition(".")[2].replace("_", "-")


def read_help(function: Callable[..., object]) -> str:
    """Return the docstring of a function without its indentation."""
    if function.__doc__:
        return inspect.cleandoc(function.__doc__)
    tree = _parse_source(sys.modules[function.__module__])
    nodes = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function.__name__)
    node = next(nodes, None)
    return _get_docstring(node, clean=True) if node is not None else ""


def _parse_source(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # installed without source
        return ast.Module([], [])


def _get_docstring(node: ast.Module | ast.FunctionDef, *, clean: bool) -> str:
    return ast.get_docstring(node, clean=clean) or ""
