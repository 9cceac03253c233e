"""Python's syntax: a tree built while other threads build theirs, and full names in it. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Tree = TypeVar("_Tree")


def call_parser(parse: Callable[_Given, _Tree], *args: _Given.args, **kwargs: _Given.kwargs) -> _Tree:
    """Call a function that builds a syntax tree, and call it again where another thread's tree disturbed it.

    Up to Python 3.12 all threads of a process share the counter of a tree's depth. If Python changes to another thread
    while it builds a tree, and that thread builds one too, the first one raises SystemError, although its tree is
    right.

    ``ast.parse`` is such a function, and ``packaging.requirements.Requirement`` uses it.

    Examples:
        >>> call_parser(ast.literal_eval, "[1, 2]")
        [1, 2]
    """
    while True:
        try:
            return parse(*args, **kwargs)
        except SystemError as fault:  # noqa: PERF203, one parse is far longer
            if "recursion depth mismatch" not in str(fault):
                raise


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
    """Return the full name of a name or of its attributes; empty for any other expression, such as ``f().x``.

    It is ``torch.multiprocessing.spawn`` for ``mp.spawn``, by the `imported_names`.
    """
    attributes: list[str] = []
    while isinstance(expression, ast.Attribute):
        attributes.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join([names.get(expression.id, expression.id), *reversed(attributes)])
