"""The bundle of a job's code: the code without what stays here, with the installed smddp if it imports that.

A container that lacks smddp gets it this way: the package itself, and the light packages that it needs, in the
bundle's requirements.txt. The user's own directory is never changed; the bundle is a copy that goes away again.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from estimators.errors import EstimatorError
from estimators.source_code.package import PACKAGE, REQUIREMENTS, add_requirements, needs_package, package_directory
from estimators.source_code.source import SourceCode
from estimators.source_code.tree import CACHE, Tree

logger = logging.getLogger(__name__)

_SHOWN = 10
"""So many of the paths that are left out are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A source that is ready for the SDK to upload."""

    source: SourceCode
    directory: Path | None
    """The copy made for it, if one was made."""

    secrets: tuple[str, ...] = ()
    """The paths that are not in it because they look like secrets."""

    def remove(self) -> None:
        """Delete the copy."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def stage(source: SourceCode, *, into: Path | None = None, without: Sequence[Path] = ()) -> Bundle:
    """Bundle the installed smddp with code that imports it, without what stays here; other code is its own bundle.

    Args:
        source: The code.
        into: A directory to make for the bundle, whatever the code is: for the SDK's Local Mode, which uploads nothing,
            and whose containers write to the code that they are given.
        without: Files and directories that are no code, wherever they lie in the source.

    Raises:
        EstimatorError: The code can't be copied, or a ``.smddpignore`` can't be read.
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
    trees = {path: Tree.of(path, without) for path in source.directories}
    stays = [f"{tree.root / path}" for tree in trees.values() for path in tree.left_out]
    secrets = tuple(f"{tree.root / path}" for tree in trees.values() for path in tree.secrets)
    needs = needs_package(source)
    if into is None and not needs and all(path.endswith(CACHE) for path in stays):
        return Bundle(source=source, directory=None)
    if stays:
        logger.info("left out of the bundle: %s", _listed(stays))
    if into is not None:
        into.mkdir()
    directory = into or Path(tempfile.mkdtemp(prefix="smddp-source-"))
    try:
        if source.source_dir is not None:
            _copy_tree(trees[Path(source.source_dir)], directory)
            entry_point = str(source.entry_point)
        else:
            shutil.copy2(source.script, directory)
            entry_point = source.script.name
        for dependency in source.dependencies:
            target = directory / source.name_in_bundle(dependency)
            if (path := Path(dependency)) in trees:
                _copy_tree(trees[path], target)
            else:
                shutil.copy2(path, target)
        if needs:
            shutil.copytree(
                package_directory(),
                directory / PACKAGE,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
            add_requirements(directory / REQUIREMENTS)
    except BaseException as fault:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(fault, OSError):
            raise EstimatorError(f"source_dir, dependencies: the code can't be copied: {fault}") from fault
        raise
    staged = SourceCode(
        entry_point=entry_point,
        source_dir=str(directory),
        dependencies=(),
    )
    return Bundle(source=staged, directory=directory, secrets=secrets)


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def _copy_tree(tree: Tree, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in tree.files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree.root / path, target / path)
