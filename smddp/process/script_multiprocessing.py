"""Two mistakes of scripts with multiprocessing: a job that starts again in each worker, and ranks that spawn ranks.

Workers of ``spawn`` or ``forkserver``, Python 3.14's default on Linux, import the script under another name to find
their functions. A call without the guard ``if __name__ == "__main__":`` would run again in each worker.

A launcher gives each of its ranks MASTER_ADDR and MASTER_PORT, and torchrun's agent serves that store itself. Ranks
that a script then spawns by ``torch.multiprocessing.spawn`` wait half an hour at a port without a server. The script
may spawn only if no launcher started it, so this is a warning before it runs, not an error.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from multiprocessing import current_process
from pathlib import Path

from smddp.errors import UnguardedScriptError
from smddp.python_syntax import call_parser, full_name, imported_names

SPAWN_REMEDY = (
    "Start it with python, or in a job without distribution; or leave the ranks to the launcher, and call the training "
    "function where the script spawns it."
)
"""The advice for a message that names the line."""

_SPAWNING = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})


def refuse_in_import(call: str) -> None:
    """Raise UnguardedScriptError for a call such as ``smddp.run(main)`` in a worker that is importing the script."""
    # multiprocessing's own flag, by which it refuses to start processes during the import.
    if getattr(current_process(), "_inheriting", False):
        raise UnguardedScriptError(
            f"a process that multiprocessing has started, such as a DataLoader's worker, imports the script, and the "
            f'script calls {call} again: put the call below `if __name__ == "__main__":`'
        )


def find_spawn_call(script: Path) -> int | None:
    """Return the line, from 1, of the first call of ``torch.multiprocessing.spawn`` or ``start_processes``.

    Return None if there is no such call, or the file is not a Python script.

    Examples:
        >>> find_spawn_call(Path("train.py"))
        31
    """
    if script.suffix != ".py":
        return None
    try:
        tree = call_parser(ast.parse, script.read_bytes())
    except (OSError, SyntaxError, ValueError):  # running the script reports it
        return None
    return spawn_call_in(tuple(ast.walk(tree)))


def spawn_call_in(nodes: Sequence[ast.AST]) -> int | None:
    """Return the line of the first such call among the nodes of a script's syntax tree, or None."""
    names = imported_names(nodes)
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return min((call.lineno for call in calls if full_name(call.func, names) in _SPAWNING), default=None)
