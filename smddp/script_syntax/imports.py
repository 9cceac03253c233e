"""The imports of a script that come from neither its own code, nor Python, nor smddp."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from smddp.job.distribution_names import is_in
from smddp.script_syntax.modules import PACKAGE, Modules, PythonModule

_ABSENT = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
"""Exceptions whose handlers expect that a module is absent."""
_SELDOM = frozenset(
    {"antigravity", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "this", "tkinter", "turtle", "turtledemo"}
)
"""Modules of Python's own that no training imports."""
_FINDERS = frozenset({"sys.path", "sys.meta_path", "sys.path_hooks", "sys.modules", "site.addsitedir", "__path__"})
"""What decides where Python finds a module."""
_PIP = re.compile(r"^pip$|\bpip3? install\b")
"""A text that runs pip, as in ``[sys.executable, "-m", "pip", "install", name]``."""


def outside_imports(
    modules: Modules, roots: Sequence[Path]
) -> Iterator[tuple[PythonModule, ast.Import | ast.ImportFrom, str]]:
    """Yield each import of a top-level module from outside; `roots` are the directories of the script's own code.

    An import whose absence the script expects is left out.
    """
    for module in modules.reached:
        for statement in _expected(module.tree):
            if any(modules.imported_by(module, statement)):
                continue
            for name in sorted({full.partition(".")[0] for full in _full_names(statement)}):
                if name not in sys.stdlib_module_names | {PACKAGE, ""} and not any(is_in(root, name) for root in roots):
                    yield module, statement, name


def hiding_modules(directory: Path) -> list[str]:
    """Return the files and packages that hide a module of Python's, torch, NumPy or smddp from the directory's scripts.

    Python looks in a script's directory first. A package smddp is one that the user brings.
    """
    hidden = sys.stdlib_module_names - _SELDOM | {"torch", "numpy", PACKAGE}
    files = (each.name for each in directory.glob("*.py") if each.stem in hidden)
    packages = (each.parent.name for each in directory.glob("*/__init__.py"))
    return sorted([*files, *(f"{name}/" for name in packages if name in hidden - {PACKAGE})])


def brings_modules(module: PythonModule) -> bool:
    """Return whether code may find or install modules by itself: by ``sys.path``, or by pip in a subprocess."""
    return any(
        (isinstance(node, ast.Attribute | ast.Name) and module.full_name(node) in _FINDERS)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and _PIP.search(node.value) is not None)
        for node in module.nodes
    )


def is_installed_here(module: str) -> bool:
    """Return whether this Python finds a top-level module, without importing it."""
    try:
        return find_spec(module) is not None
    except ValueError:  # a module without a specification, such as __main__
        return True


def _expected(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements of a tree in their order, without those whose absence the script expects."""
    pending = [tree]  # a stack in place of recursion: a chain of elif has no bound on its depth
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.expr):
            pending += reversed(list(_unguarded(node)))


def _unguarded(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node's children, without blocks that run only if a module is there, or by a type checker."""
    match node:
        case ast.Try(handlers=handlers, finalbody=last) if any(_expects_absence(each.type) for each in handlers):
            yield from last
        case ast.With(items=items) if any(_suppresses_absence(each.context_expr) for each in items):
            return
        case ast.If(test=test, orelse=other) if _names_in(test) & {"TYPE_CHECKING", "find_spec"}:
            yield from other
        case _:
            yield from ast.iter_child_nodes(node)


def _expects_absence(caught: ast.expr | None) -> bool:
    return caught is None or any(isinstance(each, ast.Name) and each.id in _ABSENT for each in ast.walk(caught))


def _suppresses_absence(context: ast.expr) -> bool:
    if not (isinstance(context, ast.Call) and "suppress" in _names_in(context.func)):
        return False
    return any(map(_expects_absence, context.args))


def _names_in(expression: ast.expr) -> set[str]:
    """Return the names and attributes in an expression."""
    nodes = list(ast.walk(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _full_names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [] if statement.level else [statement.module or ""]
