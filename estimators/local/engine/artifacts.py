"""What a job leaves in S3: the model and the output data of all its hosts, as archives or as single objects.

Files of the same name on several hosts are one file in the result: the first host's, as a warning says.
"""

from __future__ import annotations

import logging
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.local.engine.objects import S3Uri, explaining, upload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_FASTEST = 1
"""gzip's level: weights hardly shrink, and the job waits."""


def upload_model(s3: S3Client, roots: Iterable[Path], output: S3Uri, scratch: Path, *, compressed: bool) -> str:
    """Upload /opt/ml/model of all hosts, be it empty; the URI for ModelArtifacts."""
    files = _merge(root / "model" for root in roots)
    with explaining("Model upload failed", output):
        if not compressed:
            _upload_files(s3, files, output.below("model"))
            return f"{output.below('model')}/"
        return str(_upload_archive(s3, files, output.below("model.tar.gz"), scratch / "model.tar.gz"))


def upload_output(s3: S3Client, roots: Iterable[Path], output: S3Uri, scratch: Path, *, compressed: bool) -> None:
    """Upload /opt/ml/output/data of all hosts, if there is anything in it."""
    files = _merge(root / "output" / "data" for root in roots)
    if not files:
        return
    with explaining("Output upload failed", output):
        if compressed:
            _upload_archive(s3, files, output.below("output.tar.gz"), scratch / "output.tar.gz")
        else:
            _upload_files(s3, files, output.below("data"))


def _merge(directories: Iterable[Path]) -> dict[str, Path]:
    merged: dict[str, Path] = {}
    for directory in directories:
        for path in _files(directory):
            name = path.relative_to(directory).as_posix()
            if name in merged:
                logger.warning("%s is left out: %s has the same name in the archive", path, merged[name])
            else:
                merged[name] = path
    return merged


def _files(directory: Path) -> Iterator[Path]:
    """Files and links, sorted; links to directories are links."""
    for parent, folders, names in os.walk(directory):
        folders.sort()
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted(names + links):
            path = Path(parent, name)
            if path.is_file() or path.is_symlink():
                yield path


def _upload_files(s3: S3Client, files: dict[str, Path], folder: S3Uri) -> None:
    for name, path in files.items():
        if path.is_file():
            upload(s3, path, folder.below(name))


def _upload_archive(s3: S3Client, files: dict[str, Path], uri: S3Uri, archive: Path) -> S3Uri:
    with tarfile.open(archive, "w:gz", compresslevel=_FASTEST) as bundle:
        for name, path in files.items():
            bundle.add(path, name, recursive=False, filter=_owned_by_root)
    upload(s3, archive, uri)
    archive.unlink()
    return uri


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
