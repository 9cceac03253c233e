"""Check that the modules that a script imports are in its code, its requirements, or what runs the job.

It is an error only if the job would fail for sure: this Python runs it and has no such module, and every run of the
script executes the import. Else it is a warning: of AWS's images only a part of the content is known, and an import in
a function may never be executed. Nothing is said of the user's own images, which may have anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from estimators.errors import Problem, error, warning
from estimators.source_code import REQUIREMENTS, SourceCode
from smddp.job.distribution_names import distributions_of, without_index
from smddp.python_syntax import call_parser
from smddp.script_syntax import Executed, PythonModule, brings_modules, outside_imports

_SOURCES = re.compile(r"(-i|-f|--index-url|--extra-index-url|--no-index|--find-links|--trusted-host|--pre)(?=[\s=]|$)")
"""Options of requirements that request no package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What runs a job, and the modules installed there."""

    where: str
    """Its name in a message."""
    has: Callable[[str], bool]
    """Whether it has a top-level module."""
    is_complete: bool
    """Whether it has no other modules than those."""


def check(source: SourceCode, nodes: Sequence[Executed], installed: Installed) -> Iterator[Problem]:
    """Yield the modules that are nowhere, each at its first import; `nodes` are those that every run executes."""
    if (named := _named(source)) is None or any(map(brings_modules, source.modules.reached)):
        return
    sure = {id(node) for _, node in nodes}
    told = set[str]()
    for module, statement, name in _imports(source):
        if name in told or installed.has(name) or _is_named(name, named):
            continue
        told.add(name)
        is_error = installed.is_complete and id(statement) in sure
        yield (error if is_error else warning)(
            "entry_point",
            f"{name} is imported ({module.name}, line {statement.lineno}), and neither in {REQUIREMENTS} nor in "
            f"source_dir nor {installed.where}",
            without_index(name)
            or f"Add {distributions_of(name)[0]} to {REQUIREMENTS}"
            f"{' in source_dir' if source.source_dir else ', and give its directory as source_dir'}.",
        )


def imported_modules(source: SourceCode) -> frozenset[str]:
    """Return the top-level modules that a script needs besides its own code, Python and smddp."""
    return frozenset(name for _, _, name in _imports(source))


def _is_named(module: str, packages: Collection[str]) -> bool:
    """Return whether one of the packages contains a top-level module: by its name, or by its files if it is here."""
    if any(canonicalize_name(name) in packages for name in distributions_of(module)):
        return True
    return any(module in _modules(package) for package in packages)


def _modules(package: str) -> frozenset[str]:
    """Return the top-level modules of a package, none if it is not installed here."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return frozenset()
    listed = (found.read_text("top_level.txt") or "").split()
    return frozenset(listed or (file.parts[0].removesuffix(".py") for file in found.files or ()))


def _imports(source: SourceCode) -> Iterator[tuple[PythonModule, ast.Import | ast.ImportFrom, str]]:
    """Return each import of a module that belongs neither to Python, nor to smddp, nor to the job's code."""
    roots = [Path(source.source_dir)] if source.source_dir else [source.script.parent]
    roots += [path if path.is_dir() else path.parent for path in map(Path, source.dependencies)]
    return outside_imports(source.modules, roots)


def _named(source: SourceCode) -> frozenset[str] | None:
    """Return the packages of the job's requirements, with what they require as far as they are installed here.

    None means that they can't be listed: a URL, another file, or a package's own setup.
    """
    root = Path(source.source_dir) if source.source_dir else source.script.parent
    if any((root / name).is_file() for name in ("setup.py", "pyproject.toml")):
        return None
    files = [root / REQUIREMENTS] if source.source_dir else []
    files += [path for path in map(Path, source.dependencies) if path.name == REQUIREMENTS]
    found, pending = set[str](), list[str]()
    for file in filter(Path.is_file, files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            text = re.split(r"(?:^|\s)#", line)[0].strip()
            if not text or _SOURCES.match(text):
                continue
            try:
                pending.append(call_parser(Requirement, text).name)
            except InvalidRequirement:
                return None
    while pending:
        name = canonicalize_name(pending.pop())
        if name not in found:
            found.add(name)
            pending += _required(name)
    return frozenset(found)


def _required(package: str) -> list[str]:
    try:
        return [call_parser(Requirement, text).name for text in requires(package) or () if "extra ==" not in text]
    except PackageNotFoundError:
        return []
