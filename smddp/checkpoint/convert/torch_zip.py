"""Whether the zip file that ``torch.save`` wrote is whole, before torch maps it into memory and believes what it says.

torch takes a tensor's values from where its record begins in the file: as many bytes as the pickle says, whether the
record is that long, and whether it is compressed or not. And it does not look at the checksums.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from smddp.checkpoint.convert.pickles import UNREADABLE, BoundedUnpickler, Inert
from smddp.errors import CheckpointError

_PICKLE = "data.pkl"
_CODE = "code/"
"""How the names of a TorchScript archive's compressed records begin; torch.load refuses such an archive."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a record: its mark, and the lengths of the name and of the extra field that follow."""
_LOCAL_MARK = b"PK\x03\x04"
_ENCRYPTED = 0x1
_ITEM_SIZES = {
    1: ("Untyped", "Byte", "Char", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"),
    2: ("Short", "Half", "BFloat16"),
    4: ("Int", "Float", "QInt32"),
    8: ("Long", "Double", "ComplexFloat"),
    16: ("ComplexDouble",),
}
"""How the names of the classes of storage begin that count in so many bytes. The list is closed: tensors of newer
dtypes are saved as untyped storage."""
_PIECE = 2**20  # bytes read at a time


def check_torch_zip(file: BinaryIO, origin: str) -> None:
    """See that every record is stored as it is, with its checksum and the size that its tensor needs.

    Args:
        file: It; it can be sought in.
        origin: What to call it in errors.

    Raises:
        CheckpointError: It is not so.
        OSError: It cannot be read.
    """
    try:
        _check(file, origin)
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, struct.error, *UNREADABLE) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged: {reason}") from error


def _check(file: BinaryIO, origin: str) -> None:
    with zipfile.ZipFile(file) as archive:
        listed = archive.infolist()
    records = {record.filename: record for record in listed}
    root = listed[0].filename.partition("/")[0] if listed else ""
    stored = [record for record in listed if not record.filename.startswith(f"{root}/{_CODE}")]
    if len(records) != len(listed) or sum(record.compress_size for record in stored) > file.seek(0, 2):
        raise CheckpointError(f"{origin} is damaged: its records overlap, or have the same names")
    for record in stored:
        is_plain = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
        if not is_plain or record.flag_bits & _ENCRYPTED:
            raise CheckpointError(
                f"{origin} holds {record.filename} compressed or encrypted, which torch.save does not do; if you trust "
                "the file, load it with torch.load(..., mmap=False), and save it anew with torch.save"
            )
    # torch.serialization.set_crc32_options(False) leaves 0 everywhere: then there is nothing to compare with.
    if any(record.CRC for record in stored):
        for record in stored:
            checksum = 0
            for piece in _content(file, record):
                checksum = zlib.crc32(piece, checksum)
            if checksum != record.CRC:
                raise CheckpointError(f"{origin} is damaged: {record.filename} does not match its checksum")
    pickled = records.get(f"{root}/{_PICKLE}")
    if pickled is None:
        raise CheckpointError(f"{origin} is not a file that torch.save wrote: it has no {_PICKLE}")
    unpickler = _SizesUnpickler(b"".join(_content(file, pickled)))
    unpickler.load()
    for key, size in unpickler.sizes.items():
        found = records.get(f"{root}/data/{key}")
        if found is None or found.file_size != size:
            has = "none" if found is None else f"one of {found.file_size} bytes"
            raise CheckpointError(f"{origin} is damaged: it needs a record data/{key} of {size} bytes, and has {has}")


def _content(file: BinaryIO, record: zipfile.ZipInfo) -> Iterator[bytes]:
    """Read a record from where torch takes it, in pieces."""
    file.seek(record.header_offset)
    mark, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if mark != _LOCAL_MARK:
        raise zipfile.BadZipFile(f"{record.filename} does not begin where it should")
    file.seek(name + extra, 1)
    left = record.file_size
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise EOFError(f"{record.filename} ends too early")
        left -= len(piece)
        yield piece


class _Storage(Inert):
    """Stands for the class of a tensor's storage."""

    item_size: int
    """Bytes of what it counts."""


class _SizesUnpickler(BoundedUnpickler):
    """Makes nothing of a pickle but the sizes of the records that it refers to."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.sizes: dict[str, int] = {}
        """Bytes by the record's key."""

    def find_class(self, _module: str, name: str, /) -> Any:
        """Return what stands for a name."""
        kind = name.removesuffix("Storage")
        sizes = [size for size, kinds in _ITEM_SIZES.items() if kind in kinds and kind != name]
        return type(name, (_Storage,), {"item_size": sizes[0]}) if sizes else Inert

    def persistent_load(self, reference: Any) -> Any:
        """Take note of a reference to a record, and give what stands for its content."""
        kind, storage, key, _location, count = reference
        if kind != "storage" or not issubclass(storage, _Storage) or type(count) is not int or count < 0:
            raise pickle.UnpicklingError(f"it refers to {str(reference)[:100]}")
        size = self.sizes.setdefault(key, count * storage.item_size)
        if size != count * storage.item_size:
            raise pickle.UnpicklingError(f"it needs data/{key} in two sizes")
        return Inert()
