"""A job's code as a directory, for the SDK to upload or mount.

The bundle brings smddp to a container that lacks it: the package itself, and its light requirements in the bundle's
requirements.txt. The user's directory is never changed: the bundle is a temporary copy.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from estimators.errors import EstimatorError
from estimators.source_code.contents import Contents
from estimators.source_code.source import PACKAGE, SourceCode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A source that the SDK can upload."""

    source: SourceCode
    directory: Path | None
    """The temporary copy, or None if the source itself is used."""

    secrets: tuple[str, ...] = ()
    """The paths left out because they look like secrets."""

    def remove(self) -> None:
        """Delete the copy, if there is one."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def stage(
    source: SourceCode,
    *,
    into: Path | None = None,
    without: Sequence[Path] = (),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Bundle:
    """Bundle code that imports smddp with the installed package; other code without excluded files is its own bundle.

    `into` is a directory to create for the bundle in any case: the containers of the SDK's Local Mode write to the code
    that is mounted. `without` are paths in the source that are not code, `more` additional files by name. Raise
    EstimatorError if the code can't be copied, or a ``.smddpignore`` can't be read.
    """
    if not source.is_local:
        if source.entry_point is not None:
            tell_of_code_elsewhere()
        return Bundle(source=source, directory=None)
    contents = Contents.of(source, without, more)
    if into is None and contents.is_source:
        return Bundle(source=source, directory=None)
    if into is not None:
        into.mkdir()
    directory = into or Path(tempfile.mkdtemp(prefix="smddp-source-"))
    try:
        for name, file in contents.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                (directory / name).write_bytes(file)
            else:
                shutil.copy2(file, directory / name)
    except BaseException as fault:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(fault, OSError):
            raise EstimatorError(f"source_dir, dependencies: the code can't be copied: {fault}") from fault
        raise
    staged = SourceCode(
        entry_point=contents.entry_point,
        source_dir=str(directory),
        dependencies=(),
    )
    return Bundle(source=staged, directory=directory, secrets=contents.secrets)


def tell_of_code_elsewhere() -> None:
    """Log that smddp is not added to code outside this machine."""
    logger.info(
        "the code is not on this machine, so %s is not added to it: if the script imports %s, have it in the archive "
        "or repository, or in the image",
        PACKAGE,
        PACKAGE,
    )
