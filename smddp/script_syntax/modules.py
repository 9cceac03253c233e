"""The Python files of a script as the script sees them: found by import, each parsed at most once. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from smddp.process.script_names import full_name
from smddp.script_syntax.python_module import PACKAGE, PythonModule

_MOST_READ = 200
"""Files after which no further module is looked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Modules:
    """A script, and the modules of its own code: of a job, those in the bundle."""

    path: Path
    """The script."""
    directories: Sequence[Path]
    """The directories in which the script finds its own modules."""
    named: Mapping[str, Path]
    """The files and directories that the bundle adds, by the name of the module or package."""
    _read: dict[Path, PythonModule] = field(default_factory=dict, init=False, repr=False)

    def module(self, path: Path) -> PythonModule:
        """Return a parsed file."""
        if path not in self._read:
            self._read[path] = PythonModule.read(path)
        return self._read[path]

    @cached_property
    def script(self) -> PythonModule:
        """The entry point; empty if it is no Python file."""
        if self.path.suffix != ".py":
            return PythonModule(path=self.path)
        return self.module(self.path)

    @cached_property
    def reached(self) -> Sequence[PythonModule]:
        """The script, and every module of the bundle that it imports, directly or not."""
        found = {self.script.path: self.script}
        pending = [self.script]
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
