"""Uploads the model and the output data of a job's hosts to S3, as archives or as single objects.

A file name that several hosts have is uploaded once, from the first host; a warning names the files left out.

Weights hardly compress, and the job waits for their archive: zlib's fastest level takes a minute for a GB of weights,
and saves a few per cent. So `fast_gzip` compresses each block by the method that suits a sample of it. The result is
one gzip member, which every program reads.
"""

from __future__ import annotations

import functools
import io
import logging
import stat
import struct
import tarfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.transfers.objects import FileUri, S3Uri, Transfers, explaining, upload
from smddp.display_text import shown_name

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_PIECE = 1 << 20
"""Bytes that are read of a file at a time."""

_BLOCK = 1 << 20
"""Bytes that are compressed by one method."""
_PIECES, _PIECE = 8, 2048
"""Number and size of the pieces of a block that are its sample."""
_WORTHWHILE = 0.9
"""A block is stored if its sample does not shrink to this part of its size."""
_STORED, _FASTEST = 0, 1
"""zlib's levels."""
_FASTEST_XFL, _UNKNOWN_OS = 4, 255
"""Fields of the header, by RFC 1952."""


@dataclass(kw_only=True, slots=True, frozen=True)
class _File:
    """A file or a symbolic link on one host."""

    tree: HostTree
    path: PurePath
    is_link: bool


def model_uri(output: S3Uri | FileUri, *, compressed: bool) -> str:
    """Return the URI of a job's model: an archive, or a prefix of single objects."""
    return str(output.below("model.tar.gz")) if compressed else f"{output.below('model')}/"


def upload_model(
    s3: S3Client, trees: Iterable[HostTree], output: S3Uri | FileUri, scratch: Path, *, compressed: bool
) -> str:
    """Upload /opt/ml/model of all hosts, even if empty; return the URI for ModelArtifacts."""
    what = "Model upload failed"
    files = _merge(trees, PurePath("model"), what, output)
    if compressed:
        uri = output.below("model.tar.gz")
        with explaining(what, uri):
            _upload_archive(s3, files, uri, scratch / "model.tar.gz")
    else:
        _upload_files(s3, files, output.below("model"), what)
    return model_uri(output, compressed=compressed)


def upload_output(
    s3: S3Client, trees: Iterable[HostTree], output: S3Uri | FileUri, scratch: Path, *, compressed: bool
) -> None:
    """Upload /opt/ml/output/data of all hosts, unless all are empty."""
    what = "Output upload failed"
    files = _merge(trees, PurePath("output", "data"), what, output)
    if not files:
        return
    if not compressed:
        _upload_files(s3, files, output.below("data"), what)
        return
    uri = output.below("output.tar.gz")
    with explaining(what, uri):
        _upload_archive(s3, files, uri, scratch / "output.tar.gz")


def _merge(trees: Iterable[HostTree], folder: PurePath, what: str, output: S3Uri | FileUri) -> dict[str, _File]:
    """Return the files and links of all hosts by path in the folder; a folder that a program removed is empty.

    Raise FailedJobError if the path is not a directory, or a directory can't be read.
    """
    merged: dict[str, _File] = {}
    for tree in trees:
        with explaining(what, output):
            found = list(tree.entries(folder, unread=_fail))
        for name, status in found:
            file = _File(tree=tree, path=folder / name, is_link=stat.S_ISLNK(status.st_mode))
            first = merged.setdefault(name, file)
            if first is not file:
                left, kept = (shown_name(str(each.tree.root / each.path)) for each in (file, first))
                logger.warning("%s is left out: %s has the same name in the archive", left, kept)
    return merged


def _fail(error: OSError) -> None:
    raise error


def _upload_files(s3: S3Client, files: dict[str, _File], folder: S3Uri | FileUri, what: str) -> None:
    transfers = Transfers(what)
    for name, file in files.items():
        status = file.tree.status(file.path)
        if status is not None and stat.S_ISREG(status.st_mode):
            uri = folder.below(name)
            transfers.copy(file.tree, file.path, uri, functools.partial(_upload_file, s3, file, uri))
    transfers.check()


def _upload_file(s3: S3Client, file: _File, uri: S3Uri | FileUri) -> None:
    with file.tree.reading(file.path) as path:
        upload(s3, path, uri)


def _upload_archive(s3: S3Client, files: dict[str, _File], uri: S3Uri | FileUri, archive: Path) -> None:
    try:
        with (
            archive.open("wb") as target,
            fast_gzip(target) as packed,
            tarfile.TarFile(fileobj=packed, mode="w", copybufsize=_PIECE) as bundle,
        ):
            for name, file in files.items():
                _add(bundle, name, file)
        upload(s3, archive, uri)
    finally:
        archive.unlink(missing_ok=True)  # it may be what filled the disk


def _add(bundle: tarfile.TarFile, name: str, file: _File) -> None:
    if file.is_link:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, file.tree.read_link(file.path)
        bundle.addfile(_owned_by_root(member))
        return
    with file.tree.reading(file.path) as path, path.open("rb") as content:
        bundle.addfile(_owned_by_root(bundle.gettarinfo(arcname=name, fileobj=content)), content)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def fast_gzip(target: BinaryIO) -> io.BufferedWriter:
    """Return a stream that writes its gzip member to `target`, complete once closed; `target` stays open."""
    return io.BufferedWriter(_Member(target), _BLOCK)


class _Member(io.RawIOBase):
    """A gzip member. Each write is a block, which ends at a byte's boundary and refers to no earlier one."""

    def __init__(self, target: BinaryIO) -> None:
        self._target, self._size, self._checksum = target, 0, 0
        header = struct.pack("<2s2BI2B", b"\x1f\x8b", zlib.DEFLATED, 0, int(time.time()), _FASTEST_XFL, _UNKNOWN_OS)
        target.write(header)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any, /) -> int:
        block = memoryview(content)  # a buffer: its type has a public name since Python 3.12
        method = _method(block)
        self._target.write(method.compress(block) + method.flush(zlib.Z_SYNC_FLUSH))
        self._checksum = zlib.crc32(block, self._checksum)
        self._size += len(block)
        return len(block)

    def close(self) -> None:
        if not self.closed:
            end = zlib.compressobj(wbits=-zlib.MAX_WBITS).flush()
            self._target.write(end + struct.pack("<2I", self._checksum, self._size & 0xFFFFFFFF))
        super().close()


def _method(block: memoryview) -> zlib._Compress:
    """Return a new compressor: the fastest one that makes a sample of the block smaller, or one that stores it."""
    step = max(len(block) // _PIECES, _PIECE)
    sample = b"".join(block[start : start + _PIECE] for start in range(0, len(block), step))
    matched, coded = _deflate(_FASTEST), _deflate(_FASTEST, zlib.Z_HUFFMAN_ONLY)
    by_matches, by_codes = (len(each.compress(sample) + each.flush()) for each in (matched, coded))
    if min(by_matches, by_codes) > _WORTHWHILE * len(sample):
        return _deflate(_STORED)
    # Weights of 16 bits have no repeated sequences, but few exponents: the search for sequences is in vain.
    return _deflate(_FASTEST, zlib.Z_HUFFMAN_ONLY if by_codes <= by_matches else zlib.Z_DEFAULT_STRATEGY)


def _deflate(level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> zlib._Compress:
    return zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
