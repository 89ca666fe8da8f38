"""Docstrings that are shown to users, also where Python drops docstrings (`-OO`, PYTHONOPTIMIZE=2)."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def page_of(module: ModuleType) -> str:
    """The docstring of a module as it is written; from its source where it was dropped."""
    return module.__doc__ or _docstring(_tree(module), clean=False)


def help_of(function: Callable[..., object]) -> str:
    """The docstring of a function, without its indentation."""
    if function.__doc__:
        return inspect.cleandoc(function.__doc__)
    tree = _tree(sys.modules[function.__module__])
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function.__name__)
    node = next(found, None)
    return _docstring(node, clean=True) if node is not None else ""


def _tree(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # installed without its source
        return ast.Module([], [])


def _docstring(node: ast.Module | ast.FunctionDef, *, clean: bool) -> str:
    return ast.get_docstring(node, clean=clean) or ""
