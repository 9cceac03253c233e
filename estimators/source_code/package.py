"""The installed smddp and its requirements: which code imports it, and what the bundle of such code gets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from estimators.errors import EstimatorError
from estimators.source_code.source import SourceCode, parsed
from estimators.source_code.tree import Tree

PACKAGE = "smddp"
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
        path.startswith(f"{PACKAGE}/") for path in Tree.of(Path(source.source_dir)).files
    )


def imports_package(source: SourceCode, package: str = PACKAGE) -> bool:
    """Return whether any of the bundled code imports a package, by default smddp."""
    roots = [Path(source.source_dir) if source.source_dir else source.script, *map(Path, source.dependencies)]
    return any(_imports_package(path, package) for root in roots for path in _scripts(root))


def package_directory(package: str = PACKAGE) -> Path:
    """Return the directory of an installed package, by default smddp."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def package_requirements() -> list[Requirement]:
    """Return smddp's requirements that a PyTorch image may lack."""
    declared = [Requirement(text) for text in requires(PACKAGE) or ()]
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
    return own + "".join(f"{line}\n" for line in [*options, *added])


def _named_in(line: str) -> str | None:
    """Return the package in a line of requirements, or None for an option, a URL or a comment."""
    try:
        return canonicalize_name(Requirement(line.partition("#")[0].strip()).name)
    except InvalidRequirement:
        return None


def _scripts(root: Path) -> Iterator[Path]:
    """Yield the bundled Python files at or below a path."""
    if root.is_file():
        yield root
    elif root.is_dir():
        with suppress(EstimatorError):  # the checks report it
            yield from (root / path for path in Tree.of(root).files if path.endswith(".py"))


def calls_package(source: SourceCode, functions: Collection[str]) -> bool:
    """Return whether the script imports smddp, and calls one of `functions`, such as ``smddp.run``."""
    return _imports_package(source.script, PACKAGE) and any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in functions for node in ast.walk(parsed(source.script))
    )


def imports_at_top(script: Path) -> frozenset[str]:
    """Return the top-level names of the modules that a script imports unconditionally at its start."""
    names: set[str] = set()
    for node in parsed(script).body:
        names |= _imported(node)
    return frozenset(name.partition(".")[0] for name in names)


def _imports_package(path: Path, package: str) -> bool:
    try:
        text = path.read_bytes()
        if path.suffix != ".py" or package.encode() not in text:
            return False
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):  # not the entry point, or its own check reports it
        return False
    return any(_is_import_of_package(node, package) for node in ast.walk(tree))


def _is_import_of_package(node: ast.AST, package: str) -> bool:
    return any(name.partition(".")[0] == package for name in _imported(node))


def _imported(node: ast.AST) -> set[str]:
    """Return the full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or ""} if isinstance(node, ast.ImportFrom) and node.level == 0 else set()
