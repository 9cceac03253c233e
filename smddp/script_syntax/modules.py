"""The Python files of a script as the script sees them: found by import, each parsed at most once. Nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from smddp.python_syntax import call_parser, full_name, imported_names

PACKAGE = "smddp"
"""The package whose calls are looked for."""
_TOO_DEEP = "it nests too deeply: split its longest chain of elif, or its longest expression"
_MOST_READ = 200
"""Files after which no further module is looked for."""


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

    @property
    def name(self) -> str:
        """The file's name in messages; ``jobs/__init__.py`` if the name alone does not tell which file it is."""
        tells = self.path.stem not in ("__init__", "__main__")
        return self.path.name if tells else "/".join(self.path.parts[-2:])

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Modules:
    """A script, and the modules of its own code: of a job, those in the bundle."""

    path: Path
    """The script."""
    directories: Sequence[Path]
    """The directories in which the script finds its own modules."""
    named: Mapping[str, Path]
    """The files and directories that the bundle adds, by the name of the module or package."""
    packages: Sequence[Path] = ()
    """The ``__init__.py`` files that Python runs before the script, if it runs the script as a module of packages."""
    _read: dict[Path, PythonModule] = field(default_factory=dict, init=False, repr=False)

    def module(self, path: Path) -> PythonModule:
        """Return a parsed file; an empty module if it is no Python file."""
        if path not in self._read:
            self._read[path] = PythonModule.read(path) if path.suffix == ".py" else PythonModule(path=path)
        return self._read[path]

    @cached_property
    def script(self) -> PythonModule:
        """The entry point; empty if it is no Python file."""
        return self.module(self.path)

    @cached_property
    def started(self) -> Sequence[PythonModule]:
        """What Python runs by itself, in order: the packages of the script, and the script."""
        return [*map(self.module, self.packages), self.script]

    @cached_property
    def reached(self) -> Sequence[PythonModule]:
        """What Python runs by itself, and every module of the bundle that it imports, directly or not."""
        found = {module.path: module for module in self.started}
        pending = list(self.started)
        while pending:
            module = pending.pop(0)
            for other in (each for node in module.import_statements for each in self.imported_by(module, node)):
                if other.path not in found:
                    found[other.path] = other
                    pending.append(other)
        return tuple(found.values())

    def imported_by(self, module: PythonModule, statement: ast.AST) -> Iterator[PythonModule]:
        """Yield the modules of the bundle that a statement of a module imports; none for other statements."""
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
            wanted = [(0, name.split(".")[:count]) for name in names for count in range(1, name.count(".") + 2)]
        elif isinstance(statement, ast.ImportFrom):
            parts = statement.module.split(".") if statement.module else []
            wanted = [(statement.level, parts[:count]) for count in range(1, len(parts) + 1)]
            wanted += [(statement.level, [*parts, alias.name]) for alias in statement.names]
        else:
            wanted = []
        for level, parts in wanted:
            if (path := self._find(module, level, parts)) is not None:
                yield self.module(path)

    def definition(self, module: PythonModule, expression: ast.expr) -> tuple[PythonModule, ast.stmt] | None:
        """Return the statement that defines a name, with its module; None if that is outside the bundle, or unsure.

        Imports within the bundle are followed. `expression` is a name, or an attribute of an imported module.
        """
        for _ in range(len(self._read) + 20):  # a bound: two modules may import a name from each other
            step = self._step(module, expression)
            if step is None:
                return None
            module, found = step
            if isinstance(found, ast.stmt):
                return module, found
            expression = found
        return None

    def _step(self, module: PythonModule, expression: ast.expr) -> tuple[PythonModule, ast.stmt | ast.expr] | None:
        """Return the statement that defines a name, or the module that it comes from and its name there."""
        *path, name = full_name(expression, {}).split(".")
        statement = module.binding(path[0] if path else name)
        if not path:
            if not isinstance(statement, ast.ImportFrom):
                return None if statement is None or isinstance(statement, ast.Import) else (module, statement)
            parts = statement.module.split(".") if statement.module else []
            name = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            home = self._find(module, statement.level, parts)
        elif isinstance(statement, ast.Import):
            full, level = module.full_name(expression).split(".")[:-1], 0
            home = self._find(module, level, full)
        elif isinstance(statement, ast.ImportFrom):
            alias = next(alias for alias in statement.names if (alias.asname or alias.name) == path[0])
            parts = [*(statement.module.split(".") if statement.module else ()), alias.name, *path[1:]]
            home = self._find(module, statement.level, parts)
        else:
            home = None
        return None if home is None else (self.module(home), ast.Name(id=name, ctx=ast.Load()))

    def _find(self, module: PythonModule, level: int, parts: Sequence[str]) -> Path | None:
        """Return the file of a module by its dotted name, or None; `level` counts the dots of a relative import."""
        # A bound on the time of a check: of a large library in the bundle, the rest counts as outside.
        if len(self._read) >= _MOST_READ:
            return None
        if level:
            return _file(module.path.parents[level - 1], parts) if level <= len(module.path.parents) else None
        if not parts or parts[0] == PACKAGE:  # which the bundle brings, and which is no code of the script's
            return None
        if (path := self.named.get(parts[0])) is not None:
            return path if path.is_file() and len(parts) == 1 else _file(path, parts[1:])
        return next((found for directory in self.directories if (found := _file(directory, parts))), None)


def _file(directory: Path, parts: Sequence[str]) -> Path | None:
    place = directory.joinpath(*parts)
    candidates = [place / "__init__.py", *([place.with_name(f"{place.name}.py")] if parts else [])]
    return next((path for path in candidates if path.is_file()), None)


def _at_module_level(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements outside functions and classes, also those in an ``if`` or another block."""
    pending = list(statements)  # in place of recursion: a chain of elif has no bound on its depth
    while pending:
        statement = pending.pop()
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            blocks = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
            for block in blocks:
                for part in ("body", "orelse", "finalbody"):
                    pending += getattr(block, part, ())


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
