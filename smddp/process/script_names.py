"""The full names in a Python file's syntax: ``torch.multiprocessing.spawn`` for ``mp.spawn``. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def imported_names(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the full name of each name that an import statement among the nodes binds."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname is not None}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(expression: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of a name or of its attributes; empty for any other expression, such as ``f().x``."""
    attributes: list[str] = []
    while isinstance(expression, ast.Attribute):
        attributes.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join([names.get(expression.id, expression.id), *reversed(attributes)])
