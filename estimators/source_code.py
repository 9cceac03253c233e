"""The training code of a job: checked before anything is uploaded, and bundled with the installed smddp if it uses it.

A container that lacks smddp gets it this way: the package itself, and the light packages that it needs, in the
bundle's requirements.txt. The user's own directory is never changed; the bundle is a copy that goes away again.
"""

from __future__ import annotations

import ast
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from estimators.errors import EstimatorError
from estimators.problem import Problem, error, nearest, warning
from smddp.launch.spawn_call import SPAWN_REMEDY, find_spawn_call

logger = logging.getLogger(__name__)

PACKAGE = "smddp"
REQUIREMENTS = "requirements.txt"

_NOT_SHIPPED = frozenset({"torch", "boto3", "typer", "rich"})
"""What smddp needs but a bundle does not ask for: the image brings the first two, the others serve the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCode:
    """Where a job's code lies."""

    entry_point: str | None
    """The script: in `source_dir` if there is one, else anywhere. None for a training recipe."""
    source_dir: str | None
    """The directory that is bundled, or an archive on S3."""
    dependencies: tuple[str, ...]
    """Files and directories that are bundled beside the script."""
    from_git: bool
    """The paths above are inside a repository that the SDK clones."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SourceCode:
        """Return the source that parameters of ``PyTorch`` describe."""
        entry_point, source_dir = arguments.get("entry_point"), arguments.get("source_dir")
        if _is_local(source_dir) and isinstance(entry_point, str) and Path(entry_point).is_absolute():
            entry_point = os.path.relpath(entry_point, str(source_dir))
        return cls(
            entry_point=entry_point,
            source_dir=source_dir,
            dependencies=tuple(arguments.get("dependencies") or ()),
            from_git=bool(arguments.get("git_config")),
        )

    @property
    def is_local(self) -> bool:
        """Whether the code lies on this machine, so that it can be checked and bundled here."""
        return isinstance(self.entry_point, str) and not self.from_git and _is_local(self.source_dir, absent=True)

    @property
    def script(self) -> Path:
        """The entry point's own path."""
        assert self.entry_point is not None
        return Path(self.source_dir or "", self.entry_point)

    @property
    def arguments(self) -> dict[str, Any]:
        """Its parameters of ``PyTorch``."""
        given = {
            "entry_point": self.entry_point,
            "source_dir": self.source_dir,
            "dependencies": list(self.dependencies),
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A source that is ready for the SDK to upload."""

    source: SourceCode
    directory: Path | None
    """The copy made for it, if one was made."""

    def remove(self) -> None:
        """Delete the copy."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def check(
    source: SourceCode, *, py_version: str | None, isolated: bool, launcher: str | None = None
) -> Iterator[Problem]:
    """Yield what would fail in the container, or in the middle of the upload.

    Args:
        source: The code.
        py_version: The container's Python as the SDK writes it, such as ``py312``; None if it may be any.
        isolated: The container has no network.
        launcher: What starts the script's ranks; None if the script is started alone.
    """
    if not source.is_local:
        return
    if source.source_dir is not None and not Path(source.source_dir).is_dir():
        yield error("source_dir", f"there is no directory {source.source_dir}", "Give an existing one, or s3://….")
        return
    yield from _check_script(source, py_version)
    if launcher is not None and (line := find_spawn_call(source.script)) is not None:
        yield warning(
            "distribution",
            f"{source.script} spawns ranks in line {line}, and the distribution ({launcher}) starts ranks, too: if the "
            "script does so in each of them, they wait for one another until a timeout",
            SPAWN_REMEDY,
        )
    for dependency in source.dependencies:
        if not Path(dependency).exists():
            yield error("dependencies", f"there is no {dependency}", "Give existing files or directories.")
    if isolated and needs_package(source):
        needed = ", ".join(requirement.name for requirement in package_requirements())
        yield warning(
            "enable_network_isolation",
            f"the script imports {PACKAGE}, whose requirements can't be installed without a network",
            f"Use an image that has {needed}.",
        )


def _check_script(source: SourceCode, py_version: str | None) -> Iterator[Problem]:
    script = source.script
    if source.source_dir is not None and Path(os.path.normpath(str(source.entry_point))).parts[:1] == ("..",):
        yield error(
            "entry_point",
            f"{source.entry_point} is outside of source_dir {source.source_dir}",
            "Only source_dir is uploaded: give the script's path inside it.",
        )
    elif not script.is_file():
        there = sorted(path.name for path in script.parent.glob("*.py")) if script.parent.is_dir() else []
        remedy = nearest(script.name, there) if there else "Give the path of the training script."
        yield error("entry_point", f"there is no file {script}", remedy)
    elif script.suffix == ".py":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as fault:
            line = getattr(fault, "lineno", None)
            place = f"{script}, line {line}" if line else str(script)
            is_newer = py_version is None or _version(py_version) > sys.version_info[:2]
            yield (warning if is_newer else error)(
                "entry_point",
                f"{place}: {getattr(fault, 'msg', fault)}",
                f"This Python {sys.version_info[0]}.{sys.version_info[1]} can't compile it.",
            )


def stage(source: SourceCode, *, into: Path | None = None, without: Collection[Path] = ()) -> Bundle:
    """Bundle the installed smddp with code that imports it; other code is its own bundle.

    Args:
        source: The code.
        into: A directory to make for the bundle, whatever the code imports, with its dependencies in it: for the
            SDK's Local Mode, which uploads nothing, and whose containers write to the code that they are given.
        without: Files and directories that are no code, wherever they lie in the source.

    Raises:
        EstimatorError: The code can't be copied.
    """
    if not source.is_local:
        if source.entry_point is not None:
            logger.info(
                "the code is not on this machine, so %s is not added to it: if the script imports %s, have it in the "
                "archive or repository, or in the image",
                PACKAGE,
                PACKAGE,
            )
        return Bundle(source=source, directory=None)
    needs = needs_package(source)
    if into is None and not needs:
        return Bundle(source=source, directory=None)
    if into is not None:
        into.mkdir()
    directory = into or Path(tempfile.mkdtemp(prefix="smddp-source-"))
    ignored = _all_but([*without, directory.parent, directory])
    try:
        if source.source_dir is not None:
            _copy_directory(Path(source.source_dir), directory, ignored)
            entry_point = str(source.entry_point)
        else:
            shutil.copy2(source.script, directory)
            entry_point = source.script.name
        if needs:
            shutil.copytree(package_directory(), directory / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
            _add_requirements(directory / REQUIREMENTS)
        for dependency in map(Path, source.dependencies if into else ()):
            if dependency.is_dir():
                _copy_directory(dependency, directory / dependency.absolute().name, ignored)
            else:
                shutil.copy2(dependency, directory)
    except BaseException as fault:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(fault, (OSError, RecursionError)):
            raise EstimatorError(f"source_dir, dependencies: the code can't be copied: {_in_words(fault)}") from fault
        raise
    staged = SourceCode(
        entry_point=entry_point,
        source_dir=str(directory),
        dependencies=() if into else source.dependencies,
        from_git=False,
    )
    return Bundle(source=staged, directory=directory)


_Ignored = Callable[[str, list[str]], set[str]]


def _all_but(places: Collection[Path]) -> _Ignored:
    """Return what ``shutil.copytree`` calls to know what not to copy."""
    resolved = {place.resolve() for place in places}

    def ignored(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory, name).resolve() in resolved}

    return ignored


def _copy_directory(origin: Path, target: Path, ignored: _Ignored) -> None:
    # Links are followed, as what they lead to may not be in the container; one that leads nowhere is nothing to copy.
    shutil.copytree(origin, target, dirs_exist_ok=True, ignore=ignored, ignore_dangling_symlinks=True)


def _in_words(fault: BaseException) -> str:
    """Return the first of the many faults that ``shutil.Error`` lists."""
    if isinstance(fault, shutil.Error) and isinstance(fault.args[0], list):
        origin, _target, why = fault.args[0][0]
        return f"{origin}: {why}"
    return str(fault)


def needs_package(source: SourceCode) -> bool:
    """Return whether any of the code imports smddp, and does not bring its own."""
    brings = [Path(source.source_dir, PACKAGE)] if source.source_dir else []
    brings += [Path(path) for path in source.dependencies if Path(path).name == PACKAGE]
    return not any(path.is_dir() for path in brings) and imports_package(source)


def imports_package(source: SourceCode) -> bool:
    """Return whether any of the code imports smddp, its own or another."""
    roots = [Path(source.source_dir) if source.source_dir else source.script, *map(Path, source.dependencies)]
    return any(_imports_package(path) for root in roots for path in _scripts(root))


def package_directory() -> Path:
    """Return where the installed smddp lies."""
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def package_requirements() -> list[Requirement]:
    """Return what a container must have for smddp, beside what every PyTorch image has."""
    declared = [Requirement(text) for text in requires(PACKAGE) or ()]
    return [
        requirement
        for requirement in declared
        if requirement.name not in _NOT_SHIPPED
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]


def _add_requirements(file: Path) -> None:
    """Append what smddp needs and the file does not name; the user's own lines stay as they are."""
    own = file.read_text() if file.exists() else ""
    named = {_named_in(line) for line in own.splitlines()}
    added = [str(requirement) for requirement in package_requirements() if requirement.name not in named]
    if own and not own.endswith("\n"):
        own += "\n"
    file.write_text(own + "".join(f"{line}\n" for line in added))


def _named_in(line: str) -> str | None:
    """Return the package that a line of requirements names; None for an option, an address or a comment."""
    try:
        return canonicalize_name(Requirement(line.partition("#")[0].strip()).name)
    except InvalidRequirement:
        return None


def _scripts(root: Path) -> Iterator[Path]:
    """Yield the Python files at or below a path, but for hidden directories such as .venv and .git."""
    if root.is_file():
        yield root
        return
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if not name.startswith((".", "__pycache__"))]
        yield from (Path(directory, name) for name in names if name.endswith(".py"))


def _imports_package(path: Path) -> bool:
    text = path.read_bytes()
    if path.suffix != ".py" or PACKAGE.encode() not in text:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # not the entry point, or that one was judged already
        return False
    return any(_is_import_of_package(node) for node in ast.walk(tree))


def _is_import_of_package(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [node.module or ""]
    else:
        return False
    return any(name.partition(".")[0] == PACKAGE for name in names)


def _is_local(source_dir: object, *, absent: bool = False) -> bool:
    if source_dir is None:
        return absent
    return isinstance(source_dir, str) and not source_dir.lower().startswith("s3://")


def _version(py_version: str) -> tuple[int, int]:
    """Return ``py312`` as (3, 12), and ``py3`` as (3, 0)."""
    digits = py_version.removeprefix("py")
    return int(digits[:1] or 0), int(digits[1:] or 0)
