"""The part of a script that every run executes, whatever its data, its machine and its arguments.

A check that reads only this part can't be wrong about a script that chooses: ``if torch.cuda.is_available():``. What is
left out, so that the rest is sure:

1. branches: the blocks of ``if``, ``while`` and ``match``, a ``try`` with handlers, the right side of ``and`` and
   ``or``, comprehensions and lambdas;
2. whatever comes after a branch that may leave the block, by ``return``, ``raise`` or ``sys.exit``;
3. whatever comes after a statement, in a called function too, that may end the run with success by ``sys.exit``;
4. functions that nothing executed calls by their names, methods, and functions with a decorator, which may call them
   on one rank only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smddp.script_syntax.modules import PACKAGE, Modules, PythonModule

Executed = tuple[PythonModule, ast.AST]
"""A node, and the module that it is in."""

_RUN = f"{PACKAGE}.run"
_EXITS = frozenset({"exit", "quit", "sys.exit", "os._exit"})
_CALLS_ALWAYS = frozenset(
    {
        f"{PACKAGE}.hydra.main",
        "hydra.main",
        "torch.distributed.elastic.multiprocessing.errors.record",
        "torch.inference_mode",
        "torch.no_grad",
    }
)
"""Decorators whose function calls the decorated one in each call."""
_SKIPPED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def executed(modules: Modules) -> Sequence[Executed]:
    """Return the nodes that every run of the script executes, in their order; those of its packages are first.

    Raise RecursionError if functions call one another, or modules import one another, in a chain of hundreds.
    """
    walk = _Walk(modules)
    return tuple(each for module in modules.started for each in walk.module(module))


def is_main_guard(test: ast.expr) -> bool:
    """Return whether a condition is ``__name__ == "__main__"``."""
    match test:
        case ast.Compare(left=one, ops=[ast.Eq()], comparators=[other]):
            texts = {each.id if isinstance(each, ast.Name) else _text(each) for each in (one, other)}
            return texts == {"__name__", "__main__"}
    return False


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


@dataclass(frozen=True, slots=True)
class _Called:
    """A function that a walk enters once the arguments of its call are done."""

    function: ast.expr


class _Walk:
    """One walk through a script; each module and each function is entered once."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._entered: set[int] = set()
        self._may_have_ended = False

    def module(self, module: PythonModule) -> Iterator[Executed]:
        if self._enters(module):
            yield from self._block(module, module.tree.body)

    def _enters(self, place: object) -> bool:
        is_new = id(place) not in self._entered
        self._entered.add(id(place))
        return is_new

    def _block(self, module: PythonModule, statements: Sequence[ast.stmt]) -> Iterator[Executed]:
        for statement in statements:
            yield module, statement
            yield from self._statement(module, statement)
            self._may_have_ended = self._may_have_ended or _may_end_run(module, statement)
            if self._may_have_ended or isinstance(statement, ast.Return | ast.Raise) or _may_leave(module, statement):
                return

    def _statement(self, module: PythonModule, statement: ast.stmt) -> Iterator[Executed]:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return
            case ast.ClassDef(body=body):
                yield from self._block(module, body)
            case ast.If(test=test, body=body):
                yield from self._expression(module, test)
                if module is self._modules.script and is_main_guard(test):
                    yield from self._block(module, body)
            case ast.For(iter=iterated, body=body) | ast.AsyncFor(iter=iterated, body=body):
                yield from self._expression(module, iterated)
                yield from self._block(module, body)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    yield from self._expression(module, item.context_expr)
                yield from self._block(module, body)
            case ast.Try(handlers=[], body=body, finalbody=last):
                yield from self._block(module, [*body, *last])
            case ast.Try() | ast.While() | ast.Match():
                return
            case ast.Import() | ast.ImportFrom():
                for imported in self._modules.imported_by(module, statement):
                    yield from self.module(imported)
            case _:
                for expression in ast.iter_child_nodes(statement):
                    yield from self._expression(module, expression)

    def _expression(self, module: PythonModule, expression: ast.AST) -> Iterator[Executed]:
        pending: list[ast.AST | _Called] = [expression]  # in place of recursion: a long sum nests as deep as it is long
        while pending:
            node = pending.pop()
            if isinstance(node, _Called):
                yield from self._function(module, node.function)
                continue
            if isinstance(node, _SKIPPED):
                continue
            yield module, node
            parts: list[ast.AST] = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.IfExp):
                parts = [node.test]
            elif isinstance(node, ast.BoolOp):
                parts = [node.values[0]]
            if isinstance(node, ast.Call):  # its arguments are executed first
                is_run = module.full_name(node.func) == _RUN and node.args
                pending.append(_Called(node.args[0] if is_run else node.func))
            pending += reversed(parts)

    def _function(self, module: PythonModule, called: ast.expr) -> Iterator[Executed]:
        if not isinstance(called, ast.Name | ast.Attribute):
            return
        found = self._modules.definition(module, called)
        if found is None or not isinstance(found[1], _Function):
            return
        decorators = [each.func if isinstance(each, ast.Call) else each for each in found[1].decorator_list]
        if all(found[0].full_name(each) in _CALLS_ALWAYS for each in decorators) and self._enters(found[1]):
            yield from self._block(found[0], found[1].body)


def _may_end_run(module: PythonModule, statement: ast.stmt) -> bool:
    """Return whether a statement may end the run with success. One that defines functions does not call them."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and module.full_name(node.func) in _EXITS:
            code = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else 0
            if code in (0, None):
                return True
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return False


def _may_leave(module: PythonModule, statement: ast.stmt) -> bool:
    """Return whether a statement is a branch that may end the block that it is in."""
    if not isinstance(statement, ast.If | ast.Try | ast.While | ast.Match):
        return False
    if isinstance(statement, ast.If) and is_main_guard(statement.test):
        return False
    return any(
        isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)
        or (isinstance(node, ast.Call) and module.full_name(node.func) in _EXITS)
        for node in ast.walk(statement)
    )
