"""The bundle of a job's code as a directory, for the SDK to upload or mount, and as an archive, which we upload.

A container that lacks smddp gets it this way: the package itself, and the light packages that it needs, in the
bundle's requirements.txt. The user's own directory is never changed; the bundle is a copy that goes away again.
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
from estimators.source_code.package import PACKAGE
from estimators.source_code.source import SourceCode

logger = logging.getLogger(__name__)


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


def stage(
    source: SourceCode,
    *,
    into: Path | None = None,
    without: Sequence[Path] = (),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Bundle:
    """Bundle the installed smddp with code that imports it, without what stays here; other code is its own bundle.

    Args:
        source: The code.
        into: A directory to make for the bundle, whatever the code is: for the SDK's Local Mode, which uploads nothing,
            and whose containers write to the code that they are given.
        without: Files and directories that are no code, wherever they lie in the source.
        more: What the bundle has besides the code, by name.

    Raises:
        EstimatorError: The code can't be copied, or a ``.smddpignore`` can't be read.
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
    """Log that code which is not on this machine gets no smddp."""
    logger.info(
        "the code is not on this machine, so %s is not added to it: if the script imports %s, have it in the archive "
        "or repository, or in the image",
        PACKAGE,
        PACKAGE,
    )
