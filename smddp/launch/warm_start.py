"""Starts the warm parent of a node's ranks, with the modules that every run of the script imports.

A script that imports neither torch nor smddp starts faster without one.
"""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from smddp.process.warm_parent import VARIABLE, WarmParent
from smddp.script_syntax import PACKAGE, Modules, executed, outside_imports

logger = logging.getLogger(__name__)

_TORCH = ("torch", "torch.distributed", "torch.nn.parallel")
_OF_OPTIMIZERS = "torch._dynamo"
"""What the first step of an optimizer imports, in seconds."""
_OWN = ("smddp.training", "smddp.watch")


def start_warm_parent(script: Path, command: Sequence[str], environ: Mapping[str, str]) -> WarmParent | None:
    """Return a parent for ranks that run this command with these variables, among others; None without one."""
    if environ.get(VARIABLE) == "0" or sys.platform != "linux" or script.suffix != ".py":
        return None
    modules = Modules(path=script, directories=[script.parent], named={})
    try:
        extras = _imported(modules)
        texts = [module.text for module in modules.reached]
    except (OSError, RecursionError):  # running the script reports it
        return None
    packages = {name.partition(".")[0] for name in extras}
    uses_own = any(PACKAGE.encode() in text for text in texts)
    if not uses_own and "torch" not in packages:
        return None
    common = [
        *_TORCH,
        *(_OWN if uses_own else ()),
        *([_OF_OPTIMIZERS] if any(b"optim" in text for text in texts) else ()),
    ]
    try:
        return WarmParent(command, modules=common, extras=extras, environ=environ)
    except OSError as error:
        logger.info("the ranks start cold: %s", error)
        return None


def _imported(modules: Modules) -> list[str]:
    """Return the modules from outside that every run imports, in their order."""
    sure = {id(node) for _, node in executed(modules)}
    names: dict[str, None] = {}
    for _, statement, _ in outside_imports(modules, [modules.path.parent]):
        if id(statement) in sure:
            found = [each.name for each in statement.names] if isinstance(statement, ast.Import) else [statement.module]
            names.update(dict.fromkeys(name for name in found if name))
    return list(names)
