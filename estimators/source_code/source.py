"""A job's code: its location (this machine, S3, a repository that the SDK clones), and what it imports of smddp."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from estimators.errors import EstimatorError
from estimators.source_code.tree import Tree
from smddp.container.requirements import ADDED
from smddp.python_syntax import call_parser
from smddp.script_syntax import PACKAGE as PACKAGE
from smddp.script_syntax import Modules, imported_by


@dataclass(frozen=True, kw_only=True)
class SourceCode:
    """The location of a job's code. Each directory is scanned, and the script is parsed, at most once."""

    entry_point: str | None
    """The script, in `source_dir` unless that is None. None for a training recipe."""
    source_dir: str | None
    """The directory to bundle, or an archive on S3."""
    dependencies: tuple[str, ...]
    """Files and directories to bundle next to the script."""
    git: Mapping[str, str] | None = None
    """The repository that the SDK clones, to which the paths above are relative, or None."""
    _trees: dict[Path, Tree] = field(default_factory=dict, init=False, repr=False, compare=False)
    _imports: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SourceCode:
        """Take the source from parameters of ``PyTorch``."""
        entry_point, source_dir = arguments.get("entry_point"), arguments.get("source_dir")
        if _is_local(source_dir) and isinstance(entry_point, str) and Path(entry_point).is_absolute():
            entry_point = os.path.relpath(entry_point, str(source_dir))
        return cls(
            entry_point=entry_point,
            source_dir=source_dir,
            dependencies=tuple(arguments.get("dependencies") or ()),
            git=arguments.get("git_config") or None,
        )

    @property
    def is_local(self) -> bool:
        """Whether the code is on this machine, so that it can be checked and bundled here."""
        return isinstance(self.entry_point, str) and self.git is None and _is_local(self.source_dir, absent=True)

    @property
    def script(self) -> Path:
        """The entry point's path on this machine."""
        assert self.entry_point is not None
        return Path(self.source_dir or "", self.entry_point)

    @property
    def program(self) -> str:
        """The entry point's path in the bundle: its path in `source_dir`, or its name without one."""
        assert self.entry_point is not None
        return self.entry_point if self.source_dir else Path(self.entry_point).name

    @staticmethod
    def name_in_bundle(dependency: str) -> str:
        """Return a dependency's name in the SDK's archive: empty for a directory with a trailing slash."""
        return dependency.rpartition("/")[2]

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories to bundle."""
        given = [self.source_dir, *self.dependencies]
        return tuple(path for path in map(Path, filter(None, given)) if path.is_dir())

    def tree(self, directory: Path) -> Tree:
        """Return the scan of one of the directories; raise EstimatorError as `Tree.of` does."""
        if directory not in self._trees:
            self._trees[directory] = Tree.of(directory)
        return self._trees[directory]

    @cached_property
    def modules(self) -> Modules:
        """The script and its modules, for code on this machine."""
        at_top = [Path(path) for path in self.dependencies if not self.name_in_bundle(path)]
        source = [] if self.source_dir is None else [self.script.parent, Path(self.source_dir)]
        named = {Path(self.name_in_bundle(path)).stem: Path(path) for path in self.dependencies}
        return Modules(
            path=self.script,
            directories=(*source, *at_top),
            named={name: path for name, path in named.items() if name},
        )

    def imports(self, package: str) -> bool:
        """Return whether any of the bundled code imports a package."""
        if package not in self._imports:
            roots = [Path(self.source_dir) if self.source_dir else self.script, *map(Path, self.dependencies)]
            files = (path for root in roots for path in self._python_files(root))
            self._imports[package] = any(
                _has(path, package) and self.modules.module(path).imports(package) for path in files
            )
        return self._imports[package]

    def _python_files(self, root: Path) -> Iterator[Path]:
        """Yield the bundled Python files at or below a path."""
        if root.is_file():
            yield from [root] if root.suffix == ".py" else []
        elif root.is_dir():
            with suppress(EstimatorError):  # the checks report it
                yield from (root / path for path in self.tree(root).files if path.endswith(".py"))

    @property
    def arguments(self) -> dict[str, Any]:
        """The source as parameters of ``PyTorch``."""
        given = {"entry_point": self.entry_point, "source_dir": self.source_dir}
        return {**{name: value for name, value in given.items() if value}, "dependencies": list(self.dependencies)}


def _has(path: Path, package: str) -> bool:
    """Return whether a file contains a package's name: most files need not be parsed."""
    try:
        return package.encode() in path.read_bytes()
    except OSError:  # copying it will report the error
        return False


def _is_local(source_dir: object, *, absent: bool = False) -> bool:
    if source_dir is None:
        return absent
    return isinstance(source_dir, str) and not source_dir.lower().startswith("s3://")


REQUIREMENTS = "requirements.txt"
WHEELS = "smddp-wheels"
"""The directory in a bundle with smddp's requirements, for a container without a network."""

_NOT_SHIPPED = frozenset({"torch", "boto3", "typer", "rich"})
"""Requirements that a bundle omits: the image contains the first two, only the command line uses the others."""


def needs_package(source: SourceCode) -> bool:
    """Return whether any of the code imports smddp without containing its own copy."""
    return imports_package(source) and not _brings_package(source)


def _brings_package(source: SourceCode) -> bool:
    if any(Path(path).name == PACKAGE and Path(path).is_dir() for path in source.dependencies):
        return True
    return source.source_dir is not None and any(
        path.startswith(f"{PACKAGE}/") for path in source.tree(Path(source.source_dir)).files
    )


def imports_package(source: SourceCode, package: str = PACKAGE) -> bool:
    """Return whether any of the bundled code imports a package, by default smddp."""
    return source.imports(package)


def package_directory(package: str = PACKAGE) -> Path:
    """Return the directory of an installed package, by default smddp."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def package_requirements() -> list[Requirement]:
    """Return smddp's requirements that a PyTorch image may lack."""
    declared = [call_parser(Requirement, text) for text in requires(PACKAGE) or ()]
    return [
        requirement
        for requirement in declared
        if requirement.name not in _NOT_SHIPPED
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]


def with_requirements(own: str, requirements: Iterable[Requirement], *, from_wheels: bool = False) -> str:
    """Return a requirements.txt with the missing requirements added; its own lines stay.

    `from_wheels` makes pip use only the wheels in the bundle, and no index.
    """
    named = {_named_in(line) for line in own.splitlines()}
    added = [str(requirement) for requirement in requirements if requirement.name not in named]
    if own and not own.endswith("\n"):
        own += "\n"
    options = ["--no-index", f"--find-links {WHEELS}"] if from_wheels else []
    below = [ADDED, *options, *added] if options or added else []
    return own + "".join(f"{line}\n" for line in below)


def _named_in(line: str) -> str | None:
    """Return the package in a line of requirements, or None for an option, a URL or a comment."""
    try:
        return canonicalize_name(call_parser(Requirement, line.partition("#")[0].strip()).name)
    except InvalidRequirement:
        return None


def calls_package(source: SourceCode, functions: Collection[str]) -> bool:
    """Return whether the script calls one of `functions`, given by their full names, such as ``smddp.run``."""
    script = source.modules.script
    return any(script.full_name(call.func) in functions for call in script.calls)


def imports_at_top(source: SourceCode) -> frozenset[str]:
    """Return the top-level names of the modules that the script imports unconditionally at its start."""
    names = {name for statement in source.modules.script.tree.body for name in imported_by(statement)}
    return frozenset(name.partition(".")[0] for name in names)
