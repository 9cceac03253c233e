"""The files of a job's bundle: the code without excluded files, and smddp if the code imports it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from estimators.errors import EstimatorError
from estimators.source_code.package import (
    PACKAGE,
    REQUIREMENTS,
    WHEELS,
    needs_package,
    package_directory,
    package_requirements,
    with_requirements,
)
from estimators.source_code.source import SourceCode
from estimators.source_code.tree import CACHE, Tree

logger = logging.getLogger(__name__)

_SHOWN = 10
"""Most left-out paths that the log names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files of a bundle."""

    files: Mapping[str, Path | bytes]
    """Each file's path, or its content if generated, by its name in the bundle, with ``/``."""
    entry_point: str
    """The script's name in the bundle."""
    secrets: tuple[str, ...]
    """The paths left out because they look like secrets."""
    is_source: bool
    """Whether the bundle equals the source directory, apart from caches."""

    @classmethod
    def of(
        cls, source: SourceCode, without: Sequence[Path] = (), more: Mapping[str, bytes] = MappingProxyType({})
    ) -> Contents:
        """Return the bundle of code on this machine, without the paths `without`, and with the files `more`.

        Raise EstimatorError if a file can't be read, or two files need the same name.
        """
        trees = {path: Tree.of(path, without) if without else source.tree(path) for path in source.directories}
        stays = [f"{tree.root / path}" for tree in trees.values() for path in tree.left_out]
        files: dict[str, Path | bytes] = {}
        if source.source_dir is not None:
            files |= _below(trees[Path(source.source_dir)])
        else:
            files[source.program] = source.script
        for dependency in source.dependencies:
            name, path = source.name_in_bundle(dependency), Path(dependency)
            files |= _below(trees[path], name) if path in trees else {name: path}
        if needs := needs_package(source):
            package = package_directory()
            files |= {f"{PACKAGE}/{path.relative_to(package).as_posix()}": path for path in _files_of(package)}
            files[REQUIREMENTS] = with_requirements(
                _text(files.get(REQUIREMENTS, b"")),
                package_requirements(),
                from_wheels=any(name.startswith(f"{WHEELS}/") for name in more),
            ).encode()
        if taken := sorted(files.keys() & more.keys()):
            raise EstimatorError(
                f"source_dir, dependencies: smddp needs {taken[0]} in the bundle itself. Rename yours."
            )
        files |= more
        _require_outputs(files)
        is_source = not needs and not more and all(path.endswith(CACHE) for path in stays)
        if told := [path for path in stays if not path.endswith(CACHE)]:
            logger.info("left out of the bundle: %s", _listed(told))
        return cls(
            files=files,
            entry_point=source.program,
            secrets=tuple(f"{tree.root / path}" for tree in trees.values() for path in tree.secrets),
            is_source=is_source,
        )


def _below(tree: Tree, name: str = "") -> dict[str, Path | bytes]:
    return {str(PurePosixPath(name, path)): tree.root / path for path in tree.files}


def _files_of(package: Path) -> Iterator[Path]:
    return (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _text(file: Path | bytes) -> str:
    try:
        return (file if isinstance(file, bytes) else file.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as fault:
        raise EstimatorError(f"source_dir, dependencies: {file!s} can't be read as text: {fault}") from fault


def _require_outputs(files: Mapping[str, object]) -> None:
    for name in files:
        if above := next((str(path) for path in PurePosixPath(name).parents if str(path) in files), None):
            raise EstimatorError(
                f"source_dir, dependencies: {above} would be a file in the bundle, and the directory of {name}. Rename "
                "one of the two."
            )


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
