"""One Python file of a script's code, parsed once: its syntax tree, its imports, and its names. Nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from smddp.process.script_names import full_name, imported_names
from smddp.syntax_parse import call_parser

PACKAGE = "smddp"
"""The package whose calls are looked for."""
_TOO_DEEP = "it nests too deeply: split its longest chain of elif, or its longest expression"


@dataclass(frozen=True, kw_only=True, eq=False)
class PythonModule:
    """A parsed Python file. Two objects are equal only if they are the same."""

    path: Path
    """The file on this machine."""
    text: bytes = b""
    """The file's bytes, empty if it can't be read or is no Python file."""
    tree: ast.Module = field(default_factory=lambda: ast.Module(body=[], type_ignores=[]))
    """The syntax tree of `text`, empty if it can't be parsed."""
    fault: OSError | SyntaxError | ValueError | None = None
    """The reason why the file can't be parsed, or None."""

    @classmethod
    def read(cls, path: Path) -> PythonModule:
        """Parse a file; a file that can't be parsed has an empty tree."""
        text = b""
        fault: OSError | SyntaxError | ValueError
        try:
            text = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about invalid escapes: running the script shows them
                return cls(path=path, text=text, tree=call_parser(ast.parse, text, filename=str(path)))
        except (OSError, SyntaxError, ValueError) as failure:
            fault = failure
        except (RecursionError, MemoryError):  # Python's own bounds on the depth of a tree
            fault = ValueError(_TOO_DEEP)
        return cls(path=path, text=text, fault=fault)

    @cached_property
    def syntax_fault(self) -> SyntaxError | ValueError | None:
        """The reason why Python can't compile the file, or None; a file that can't be read has none."""
        if self.fault is not None:
            return self.fault if not isinstance(self.fault, OSError) else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # The text, not the tree: Python compiles a text that nests far deeper than a tree it takes.
                compile(self.text, str(self.path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as fault:
            return fault
        except (RecursionError, MemoryError):
            return ValueError(_TOO_DEEP)
        return None

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def calls(self) -> Sequence[ast.Call]:
        """All calls in the file."""
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def import_statements(self) -> Sequence[ast.Import | ast.ImportFrom]:
        """All import statements in the file."""
        return tuple(node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom))

    @cached_property
    def imported(self) -> frozenset[str]:
        """The full names of the modules that the file imports anywhere, without relative imports."""
        return frozenset(name for statement in self.import_statements for name in imported_by(statement))

    def imports(self, package: str) -> bool:
        """Return whether the file imports a package or a module of it."""
        return any(name.partition(".")[0] == package for name in self.imported)

    def full_name(self, expression: ast.expr) -> str:
        """Return the full name of a name or of its attributes, by the file's imports; empty for other expressions."""
        return full_name(expression, self._names)

    @cached_property
    def _names(self) -> dict[str, str]:
        return imported_names(self.import_statements)

    def binding(self, name: str) -> ast.stmt | None:
        """Return the statement of the module's own level that binds a name; None unless there is exactly one."""
        found = self._bindings.get(name, [])
        return found[0] if len(found) == 1 else None

    @cached_property
    def _bindings(self) -> dict[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for statement in _at_module_level(self.tree.body):
            for name in _bound_by(statement):
                found.setdefault(name, []).append(statement)
        return found


def imported_by(node: ast.AST) -> set[str]:
    """Return the full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or ""} if isinstance(node, ast.ImportFrom) and node.level == 0 else set()


def _at_module_level(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements outside functions and classes, also those in an ``if`` or another block."""
    pending = list(statements)  # in place of recursion: a chain of elif has no bound on its depth
    while pending:
        statement = pending.pop()
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            blocks = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
            for block in blocks:
                for field in ("body", "orelse", "finalbody"):
                    pending += getattr(block, field, ())


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
