"""Starts the warm parent of a node's ranks, with the modules that every run of the script imports first.

The launcher of the ranks is forked from such a parent, too, before that imports the script's own packages.

The parent runs none of the script's code, nor of the packages that come with it: an import of those may read the
arguments, seed random numbers or look for a checkpoint, which each rank does for itself. So it imports only installed
packages, those that the script imports before any statement that may change what an import does, such as a call or a
change of ``os.environ``, and in the script's order. A script that imports neither torch nor smddp there starts faster
without a parent.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from smddp.job.distribution_names import is_in
from smddp.process.warm_parent import VARIABLE, WarmParent
from smddp.script_syntax.executed import executed
from smddp.script_syntax.imports import outside_imports
from smddp.script_syntax.modules import PACKAGE, Modules

logger = logging.getLogger(__name__)

_TORCH = ("torch", "torch.distributed", "torch.nn.parallel")
_OF_OPTIMIZERS = "torch._dynamo"
"""What the first step of an optimizer imports, in seconds."""
_OWN = ("smddp.training", "smddp.watch")
COMMON = (*_TORCH, _OF_OPTIMIZERS, *_OWN)
"""What most scripts import in their first step."""
OF_LAUNCHER = ("smddp.launch.torchrun", "smddp.launch.agent", "smddp.launch.node_connections")
"""What torchrun's agent imports."""
_USUALLY_FIRST = frozenset({"torch", "torchvision", "numpy", PACKAGE})
"""Packages before which torch may be imported. Others may want to be first."""
_INSTALLATIONS = frozenset({"site-packages", "dist-packages"})
_SETS_VARIABLES = re.compile(rb"environ\s*(?:\[[^\]]*\]\s*=[^=]|\.(?:setdefault|update|pop)\b|\|=)|putenv|dotenv")
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
)
"""Variables that the parent does not have, and each rank has."""


def start_warm_parent(
    command: Sequence[str], modules: Modules, environ: Mapping[str, str], *, new: bool = True
) -> WarmParent | None:
    """Return a parent for ranks of the script, such as this command with these variables; None without one.

    The parent is the one that this program was given, if that fits the script; else, with `new`, one that is started.
    """
    inherited = WarmParent.inherited()
    if (imports := choose_imports(modules, environ)) is None:
        if inherited is not None:
            inherited.close()
        return None
    if inherited is not None and not imports.not_before.isdisjoint(sys.modules):  # a copy of this process
        inherited.close()
        inherited = None
    if inherited is None and not new:
        return None
    parent = inherited or _start(command, environ, said="the ranks start")
    if parent is not None:
        parent.prepare(
            modules.directories[0],
            modules=imports.modules,
            extras=imports.extras,
            environ=_of_all(environ),
            of_ranks=_OF_RANKS,
        )
    return parent


def start_launcher_parent(
    command: Sequence[str], modules: Modules, environ: Mapping[str, str], *, directory: Path, new: bool = True
) -> WarmParent | None:
    """Return a parent for launchers of the script's ranks, such as this command with these variables; None without one.

    They run in `directory`. The parent is the one that this program was given; else, with `new`, one that is started. A
    launcher that is forked from it has a warm parent for its ranks from the beginning.
    """
    parent, to_import = WarmParent.inherited(), []
    if parent is not None and command[0] != sys.executable:
        parent.close()
        parent = None
    if parent is None and new:
        imports = choose_imports(modules, environ)
        if imports is not None and "torch" not in imports.not_before:
            parent, to_import = _start(command, environ, said="the launcher starts"), [*imports.modules, *OF_LAUNCHER]
    if parent is not None:
        parent.prepare(directory, modules=to_import, extras=[], environ=_of_all(environ), of_ranks=_OF_RANKS)
    return parent


def _start(command: Sequence[str], environ: Mapping[str, str], *, said: str) -> WarmParent | None:
    try:
        return WarmParent.start(
            environ,
            python=command[0],
            command_bytes=sum(len(os.fsencode(each)) + 1 for each in command),
            said=said,
        )
    except OSError as error:
        logger.info("%s cold: %s", said, error)
        return None


def _of_all(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks share."""
    return {name: value for name, value in environ.items() if name not in _OF_RANKS}


@dataclass(frozen=True, slots=True)
class Imports:
    """What a warm parent imports for a script."""

    modules: Sequence[str]
    extras: Sequence[str]
    not_before: frozenset[str]
    """Modules of `COMMON` that a parent must not have imported before these."""


def choose_imports(modules: Modules, environ: Mapping[str, str]) -> Imports | None:
    """Return what a warm parent of the script imports; None if it starts faster, or surely right, without one."""
    if environ.get(VARIABLE) == "0" or sys.platform != "linux" or modules.path.suffix != ".py":
        return None
    try:
        own = _own_directories(environ.get("PYTHONPATH", ""))
        modules = replace(modules, directories=[*modules.directories, *own])
        first, is_cut = _imported_first(modules)
        texts = [module.text for module in modules.reached]
    except (OSError, RecursionError):  # running the script reports it
        return None
    packages = [name.partition(".")[0] for name in first]
    uses_own = PACKAGE in packages
    if not uses_own and "torch" not in packages:
        return None
    common = [*_TORCH, *(_OWN if uses_own else ())]
    sets_variables = is_cut or any(map(_SETS_VARIABLES.search, texts))
    if sets_variables and "torch" not in packages:  # ``import smddp`` imports no torch, which may read the variable
        return None
    if any(b"optim" in text for text in texts) and not sets_variables:
        common.append(_OF_OPTIMIZERS)
    if packages[0] not in _USUALLY_FIRST:
        return Imports([*first, *common], [], frozenset(COMMON))
    return Imports(common, first, frozenset({_OF_OPTIMIZERS} if sets_variables else ()))


def _own_directories(pythonpath: str) -> list[Path]:
    """Return the directories of PYTHONPATH that have code of the user's, and no installed packages."""
    directories = [Path(each) for each in pythonpath.split(os.pathsep) if each]
    return [each for each in directories if each.is_dir() and not _is_installation(each)]


def _is_installation(directory: Path) -> bool:
    """Return whether pip has installed packages in a directory. Elsewhere is code of the user's."""
    return directory.name in _INSTALLATIONS or next(directory.glob("*.dist-info"), None) is not None


def _imported_first(modules: Modules) -> tuple[list[str], bool]:
    """Return the installed modules, and smddp's, that every run imports before anything else happens, in order.

    Also return whether an import of user's code that is not among `modules` ends them: it may do anything.
    """
    outside = {id(statement) for _, statement, _ in outside_imports(modules, modules.directories)}
    first: dict[str, None] = {}
    for module, node in executed(modules):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            # One statement may also import modules of Python's own, which may be imported before torch.
            names = [name for name in names if name and name.partition(".")[0] not in sys.stdlib_module_names]
            is_read = any(modules.imported_by(module, node))
            if not is_read and any(_is_users(name.partition(".")[0], modules.directories) for name in names):
                return list(first), True
            if id(node) in outside or any(name.partition(".")[0] == PACKAGE for name in names):
                first |= dict.fromkeys(names)
        elif isinstance(node, ast.stmt) and not _is_neutral(node):
            break
    return list(first), False


def _is_users(package: str, directories: Sequence[Path]) -> bool:
    """Return whether a package is in one of the directories, or is found here and not among installed packages."""
    if package == PACKAGE:
        return False
    if any(is_in(directory, package) for directory in directories):
        return True
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a specification, such as __main__
        return True
    if spec is None:
        return False
    places = spec.submodule_search_locations or [spec.origin or ""]
    return not any(_is_installation(Path(place).parent) for place in places)


def _is_neutral(statement: ast.stmt) -> bool:
    """Return whether a statement can't change what a later import does: it calls nothing, and sets only names."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.If() | ast.Try():
            blocks = [statement.body, statement.orelse, *(each.body for each in getattr(statement, "handlers", []))]
            blocks.append(getattr(statement, "finalbody", []))
            return all(_is_neutral(each) for block in blocks for each in block) and not _calls(
                getattr(statement, "test", None)
            )
        case ast.FunctionDef(decorator_list=decorators, args=arguments):
            return not any(map(_calls, [*decorators, arguments]))
        case ast.ClassDef(decorator_list=decorators, bases=bases, keywords=keywords, body=body):
            return not any(map(_calls, [*decorators, *bases, *keywords])) and all(map(_is_neutral, body))
        case ast.Expr() | ast.Assign() | ast.AnnAssign():
            changes = (ast.Attribute, ast.Subscript)
            stores = (node for node in ast.walk(statement) if isinstance(node, changes))
            return not _calls(statement) and all(isinstance(node.ctx, ast.Load) for node in stores)
    return False


def _calls(node: ast.AST | None) -> bool:
    return node is not None and any(isinstance(each, ast.Call | ast.Await | ast.NamedExpr) for each in ast.walk(node))
