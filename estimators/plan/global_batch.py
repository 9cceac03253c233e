"""Find the global batch if the script takes it from a hyperparameter: ``trainer.loader(…, config.batch_size)``.

smddp's Trainer takes the batch size of an optimizer step, over all ranks and micro-batches. Only a literal in the
script is found: not a size that it computes, nor the size in other loops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from estimators import source_code


def global_batch(source: source_code.SourceCode, hyperparameters: Mapping[str, Any]) -> int | None:
    """Return the samples of an optimizer step, or None if the script does not state them in this form."""
    if not source.is_local or not source.script.is_file():
        return None
    tree = source_code.parsed(source.script)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    mains = [functions.get(name) for name in _run_by_smddp(tree)]
    if len(mains) != 1 or (main := mains[0]) is None or not main.args.args:
        return None
    sizes = {_size(call, main.args.args[0].arg, hyperparameters) for call in _loaders(main)}
    if len(sizes) != 1 or len(list(_loaders(main))) != len(list(_loaders(tree))):
        return None
    return sizes.pop()


def _run_by_smddp(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the functions passed to ``smddp.run``."""
    for call in _calls(tree):
        if ast.unparse(call.func) == f"{source_code.PACKAGE}.run" and call.args and isinstance(call.args[0], ast.Name):
            yield call.args[0].id


def _loaders(tree: ast.AST) -> Iterator[ast.Call]:
    for call in _calls(tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "loader":
            yield call


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _size(call: ast.Call, config: str, hyperparameters: Mapping[str, Any]) -> int | None:
    """Return the batch size in a call of ``loader``: a number, or a field of the script's configuration."""
    given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "batch_size")]
    match given:
        case [ast.Constant(value=int(size))]:
            return size
        case [ast.Attribute(value=ast.Name(id=name), attr=field)] if name == config:
            value = hyperparameters.get(field)
            return value if type(value) is int else None
    return None
