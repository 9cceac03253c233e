"""The installed smddp and its requirements: which code imports it, and what the bundle of such code gets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from estimators.source_code.source import SourceCode, imported_by

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


def calls_package(source: SourceCode, functions: Collection[str]) -> bool:
    """Return whether the script imports smddp, and calls one of `functions`, such as ``smddp.run``."""
    nodes = list(ast.walk(source.syntax)) if source.script.suffix == ".py" else []
    return any(name.partition(".")[0] == PACKAGE for node in nodes for name in imported_by(node)) and any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in functions for node in nodes
    )


def imports_at_top(source: SourceCode) -> frozenset[str]:
    """Return the top-level names of the modules that the script imports unconditionally at its start."""
    names: set[str] = set()
    for node in source.syntax.body:
        names |= imported_by(node)
    return frozenset(name.partition(".")[0] for name in names)
