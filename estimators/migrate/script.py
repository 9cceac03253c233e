"""A submit script: its syntax tree, the meaning of its names, and the uses of its variables."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import (
    Assignment,
    ClassScope,
    GlobalScope,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameSource,
    Scope,
    ScopeProvider,
)

from estimators.errors import EstimatorError
from smddp.python_syntax import call_parser

Edit = Callable[[Any], Any]
"""Returns the replacement of a node, from the node with its children already edited."""
_Node = TypeVar("_Node", bound=cst.CSTNode)


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable of the script."""

    name: str
    bindings: tuple[cst.BaseExpression | None, ...]
    """The value of each binding; None for a binding that is not a plain assignment."""
    uses: tuple[cst.CSTNode, ...]
    """The nodes that read it."""


class Script:
    """A parsed script; raises EstimatorError if it is not Python, RecursionError if it is nested too deeply."""

    def __init__(self, source: bytes) -> None:
        try:
            if _is_too_deep(source):
                raise RecursionError
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as fault:
            raise EstimatorError(f"{_syntax_error(source, fault)}. Correct it first.") from fault
        except (SyntaxError, UnicodeDecodeError, LookupError) as fault:
            raise EstimatorError(
                f"the file is no text in the encoding that it declares, or in UTF-8: {fault}. Give a Python script."
            ) from fault
        wrapper = MetadataWrapper(module)
        self.module = wrapper.module
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._positions = wrapper.resolve(PositionProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._variables: dict[tuple[int, str], Variable] = {}
        collector = _Collector(cst.CSTNode)
        self.module.visit(collector)
        self._nodes: list[cst.CSTNode] = collector.found
        self._of_kind: dict[type[cst.CSTNode], list[Any]] = {}
        self._imports = [
            each
            for scope in dict.fromkeys(scope for scope in self._scopes.values() if scope is not None)
            for each in scope.assignments
            if isinstance(each, ImportAssignment)
        ]
        self._imported_names = {each.name.partition(".")[0] for each in self._imports}

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        """Yield the nodes of a kind, in the order of the script."""
        if kind not in self._of_kind:  # jobs ask for the same kinds again and again
            self._of_kind[kind] = [node for node in self._nodes if isinstance(node, kind)]
        return iter(self._of_kind[kind])

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the parent of a node."""
        return self._parents[node]

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins."""
        return int(self._positions[node].start.line)

    def text(self, node: cst.CSTNode) -> str:
        """Return the source text of a node."""
        return str(self.module.code_for_node(node))

    def imported_name(self, node: cst.CSTNode) -> str | None:
        """Return the full name of an expression that was imported, such as ``sagemaker.pytorch.PyTorch``; else None."""
        first = node
        while isinstance(first, cst.Attribute):
            first = first.value
        if isinstance(first, cst.Name) and first.value not in self._imported_names:
            return None  # a look-up takes longer the more often a name is bound
        scope = self._scopes.get(node)
        if scope is None:
            return None
        names = scope.get_qualified_names_for(node)
        return next((each.name for each in names if each.source is QualifiedNameSource.IMPORT), None)

    def imports(self) -> Iterator[ImportAssignment]:
        """Yield each name that an import binds."""
        return iter(self._imports)

    def star_import(self) -> str:
        """Return a remark for names that ``from sagemaker.… import *`` may provide; "" without such an import."""
        for statement in self.nodes(cst.ImportFrom):
            if isinstance(statement.names, cst.ImportStar) and statement.module is not None:
                module = self.text(statement.module)
                if module.partition(".")[0] == "sagemaker":
                    return f" (line {self.line(statement)} imports all of {module}: import what it uses by name)"
        return ""

    def imported(self) -> dict[str, str]:
        """Return the names that are imported at the top level, with their full names."""
        return {each.name: _full_name(self, each) for each in self.imports() if isinstance(each.scope, GlobalScope)}

    def written(self, value: cst.BaseExpression | None) -> Any:
        """Return the literal value of an expression, or of a variable bound once; ``...`` if it has none."""
        if isinstance(value, cst.Name) and (variable := self.variable(value)) and len(variable.bindings) == 1:
            value = variable.bindings[0]
        try:
            return ... if value is None else call_parser(ast.literal_eval, self.text(value).strip())
        except (ValueError, SyntaxError, TypeError):
            return ...

    def names(self) -> set[str]:
        """Return all names that the script binds or reads."""
        return {node.value for node in self.nodes(cst.Name)}

    def exported(self) -> set[str]:
        """Return the names that ``__all__`` lists."""
        listed: set[str] = set()
        for assign in self.nodes(cst.Assign):
            if any(isinstance(each.target, cst.Name) and each.target.value == "__all__" for each in assign.targets):
                texts = [node for node in within(assign.value) if isinstance(node, cst.SimpleString)]
                listed |= {str(node.evaluated_value) for node in texts}
        return listed

    def assigned_to(self, value: cst.CSTNode) -> Variable | None:
        """Return the variable that an expression is assigned to, if it has no other use; else None."""
        assign = self.parent(value)
        target: cst.CSTNode | None = None
        if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
            target = assign.targets[0].target
        elif isinstance(assign, cst.AnnAssign) and assign.value is value:
            target = assign.target
        if isinstance(target, cst.Attribute):
            return self.attribute(target)
        return self.variable(target) if isinstance(target, cst.Name) else None

    def attribute(self, target: cst.Attribute) -> Variable:
        """Return an attribute, such as ``self.estimator``, as a variable of its class."""
        inside: cst.CSTNode = target
        while not isinstance(inside, cst.ClassDef | cst.Module):
            inside = self.parent(inside)
        name = self.text(target)
        key = (id(inside), name)
        if key not in self._variables:
            same = [node for node in within(inside) if isinstance(node, cst.Attribute) and self.text(node) == name]
            targets = [node for node in same if isinstance(self.parent(node), cst.AssignTarget | cst.AnnAssign)]
            uses = sorted(set(same) - set(targets), key=self.line)
            self._variables[key] = Variable(name, tuple(map(self._bound, targets)), tuple(uses))
        return self._variables[key]

    def variable(self, name: cst.Name) -> Variable | None:
        """Return the variable of a name that is read or bound; None if the name is not a variable of the script."""
        scope: Scope | None = self._scopes.get(name)
        found = [each for each in scope[name.value] if isinstance(each, Assignment)] if scope else []
        if not found or any(isinstance(each, ImportAssignment) for each in found):
            return None
        key = (id(found[0].scope), name.value)
        if key not in self._variables:
            uses = {access.node: None for each in found for access in each.references}
            bindings = tuple(self._bound(each.node) for each in found)
            self._variables[key] = Variable(name.value, bindings, tuple(sorted(uses, key=self.line)))
        return self._variables[key]

    def is_of_class(self, name: cst.CSTNode) -> bool:
        """Return whether a node is in a class itself, not in a method: a name that it binds is an attribute, too."""
        return isinstance(self.scope(name), ClassScope)

    def precedes(self, statement: cst.CSTNode, node: cst.CSTNode) -> bool:
        """Return whether a statement stands before a node, in the same block or in one around the node."""
        block = self.parent(self.parent(statement))
        above = node
        while above in self._parents and above is not block:
            above = self.parent(above)
        return above is block and self.line(statement) < self.line(node)

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """Return the scope of a node."""
        while node not in self._scopes:
            node = self.parent(node)
        return self._scopes[node]

    def _bound(self, target: cst.CSTNode) -> cst.BaseExpression | None:
        parent = self._parents.get(target)
        if isinstance(parent, cst.AnnAssign):
            return parent.value
        assign = self._parents.get(parent) if isinstance(parent, cst.AssignTarget) else None
        return assign.value if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None

    def edited(self, edits: dict[cst.CSTNode, Edit]) -> bytes:
        """Return the script's source with nodes replaced."""
        return bytes(self.module.visit(_Editor(edits)).bytes)


def _is_too_deep(source: bytes) -> bool:
    """Return whether Python refuses a script for its nesting, which would overflow the stack of libcst's parser."""
    try:
        call_parser(ast.parse, source)
    except (RecursionError, MemoryError):
        return True
    except (SyntaxError, ValueError) as fault:
        return "too many nested parentheses" in str(fault)
    return False


def _syntax_error(source: bytes, fault: cst.ParserSyntaxError) -> str:
    """Return the syntax error of a script, in Python's own words if Python finds it, too."""
    try:
        call_parser(ast.parse, source)
    except SyntaxError as own:
        return own.msg if own.lineno is None else f"line {own.lineno}: {own.msg}"  # a zero byte has no line
    except ValueError as own:
        return str(own)
    return f"line {fault.raw_line}: {fault.message}"


def bound_name(alias: cst.ImportAlias) -> str:
    """Return the name that an import binds."""
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _full_name(script: Script, each: ImportAssignment) -> str:
    """Return the full name of a name that an import binds."""
    node = each.node
    if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return ""
    name = next((alias.evaluated_name for alias in node.names if bound_name(alias) == each.name), "")
    if isinstance(node, cst.Import) or node.module is None:
        return name
    return f"{script.text(node.module)}.{name}"


def within(node: cst.CSTNode) -> set[cst.CSTNode]:
    """Return a node and all nodes in it."""
    collector = _Collector(cst.CSTNode)
    node.visit(collector)
    return set(collector.found)


class _Collector(cst.CSTVisitor):
    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind = kind
        self.found: list[Any] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, self._kind):
            self.found.append(node)
        return True


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: dict[cst.CSTNode, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edit = self._edits.get(original_node)
        return updated_node if edit is None else edit(updated_node)
