"""Where a script starts ranks of its own, by ``torch.multiprocessing.spawn``, as its source tells before it runs.

A launcher gives each of its ranks MASTER_ADDR and MASTER_PORT, and torchrun's agent serves that store itself; a script
that then spawns ranks makes them wait at a port that nobody serves, for half an hour. The script may do so only where
no launcher has started it, so this is something to warn of, and no error.
"""

from __future__ import annotations

import ast
from pathlib import Path

SPAWN_REMEDY = (
    "Start it with python, or in a job without distribution; or leave the ranks to the launcher, and call the training "
    "function where the script spawns it."
)
"""What to do, for a message that says where."""

_SPAWNING = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})


def find_spawn_call(script: Path) -> int | None:
    """Find the first call of ``torch.multiprocessing.spawn`` or ``start_processes`` in a Python file.

    Args:
        script: The file.

    Returns:
        The line, from 1. None if there is no such call, or the file is none of Python's.

    Examples:
        >>> find_spawn_call(Path("train.py"))
        31
    """
    if script.suffix != ".py":
        return None
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever runs it says so
        return None
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname is not None}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node, names) in _SPAWNING]
    return min(lines, default=None)


def _called(call: ast.Call, names: dict[str, str]) -> str:
    """Return the full name of what is called: ``torch.multiprocessing.spawn`` for ``mp.spawn``."""
    first, dot, rest = ast.unparse(call.func).partition(".")
    return names.get(first, first) + dot + rest
