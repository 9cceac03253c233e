"""Parse Python's syntax safely in threads.

Up to Python 3.12 all threads of a process share the counter of a tree's depth. If Python changes to another thread
while it builds a tree, and that thread builds one too, the first one raises SystemError, although its tree is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Tree = TypeVar("_Tree")


def call_parser(parse: Callable[_Given, _Tree], *args: _Given.args, **kwargs: _Given.kwargs) -> _Tree:
    """Call a function that builds a syntax tree, and call it again where another thread's tree disturbed it.

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
