"""The kind of a script, by its syntax: it trains, or it sends a job. A script that may do both is of neither kind."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from smddp.script_syntax.executed import Executed
from smddp.script_syntax.imports import brings_modules, outside_imports
from smddp.script_syntax.modules import PACKAGE, Modules, PythonModule

_LAUNCHING = "estimators"
_ESTIMATOR = f"{_LAUNCHING}.Estimator"
_SENDING = frozenset({_LAUNCHING, "sagemaker", "boto3", "botocore"})
_MAY_TRAIN = ("torch", PACKAGE, "importlib", "runpy")


def only_trains(modules: Modules, nodes: Sequence[Executed]) -> bool:
    """Return whether every run of a script calls ``smddp.run``, and none of its modules imports an Estimator.

    `nodes` are those that every run executes.
    """
    calls = {module.full_name(node.func) for module, node in nodes if isinstance(node, ast.Call)}
    return f"{PACKAGE}.run" in calls and not any(module.imports(_LAUNCHING) for module in modules.reached)


def handles_signals(modules: Modules) -> bool:
    """Return whether the script may handle a stop's signal: it uses smddp or ``signal``, or finds modules itself."""
    unread = not modules.script.text
    names = (PACKAGE, "signal")
    return unread or any(any(map(module.imports, names)) or brings_modules(module) for module in modules.reached)


def only_sends(modules: Modules, nodes: Sequence[Executed]) -> int | None:
    """Return the line in which every run of a script calls ``fit`` of an Estimator, or None.

    Its modules import nothing that may train before the job is sent: only Python's own modules, and packages that send
    jobs. `nodes` are those that every run executes.
    """
    script = modules.script
    if any(module.imports(package) for module in modules.reached for package in _MAY_TRAIN):
        return None
    outside = {name for _, _, name in outside_imports(modules, modules.directories)}
    if _LAUNCHING not in outside or not outside <= _SENDING:  # a package of the user's own may have the name
        return None
    made = _estimators(script)
    for module, node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="fit")) if module is script and (
                _makes_estimator(script, owner) or (isinstance(owner, ast.Name) and owner.id in made)
            ):
                return node.lineno
    return None


def _estimators(script: PythonModule) -> set[str]:
    """Return the names that the script binds once, to a new Estimator."""
    bound = Counter(node.id for node in script.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    bound.update(node.arg for node in script.nodes if isinstance(node, ast.arg))
    return {
        target.id
        for node in script.nodes
        if isinstance(node, ast.Assign) and _makes_estimator(script, node.value)
        for target in node.targets
        if isinstance(target, ast.Name) and bound[target.id] == 1
    }


def _makes_estimator(script: PythonModule, expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and script.full_name(expression.func) == _ESTIMATOR
