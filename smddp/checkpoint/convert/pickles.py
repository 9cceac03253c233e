"""Read untrusted pickles without running code from them, in memory bounded by their size.

Python's unpickler imports classes by name, which can run code, and allocates a memo as large as any number in the
pickle states. Of a zip file from ``torch.save``, torch reads a tensor's values from the start of its record, as many
bytes as the pickle states. It checks neither the record's length, nor its compression, nor its checksum, so
`check_torch_zip` does, before torch maps the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from smddp.errors import CheckpointError

_REMEMBERS = {"PUT", "BINPUT", "LONG_BINPUT"}

UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that loading a damaged pickle, or using its values, may raise."""


class Inert:
    """Stands in for any class that a pickle names: accepts everything, and does nothing."""

    def __new__(cls, *_: object) -> Inert:
        """Accept any arguments."""
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, _: object) -> None:
        """Accept a state."""

    def __setitem__(self, _: object, __: object) -> None:
        """Accept an item of a dict."""

    def append(self, _: object) -> None:
        """Accept an item of a list."""

    def add(self, _: object) -> None:
        """Accept an item of a set."""


class BoundedUnpickler(pickle.Unpickler):
    """Loads a pickle in memory bounded by its size; a subclass resolves the names in it."""

    def __init__(self, content: bytes) -> None:
        """Raise CheckpointError if a memo number exceeds the pickle's bytes, ValueError if it is malformed."""
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _REMEMBERS and not 0 <= int(str(argument)) <= len(content):
                raise CheckpointError(f"a pickle of {len(content)} bytes numbers a value {argument}: it is damaged")
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for a name. The named class is never loaded."""
        raise NotImplementedError


_PICKLE = "data.pkl"
_CODE = "code/"
"""The prefix of compressed records in a TorchScript archive, which torch.load refuses anyway."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""A record's local header: its signature, and the lengths of the name and of the extra field that follow."""
_LOCAL_MARK = b"PK\x03\x04"
_ENCRYPTED = 0x1
_ITEM_SIZES = {
    1: ("Untyped", "Byte", "Char", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"),
    2: ("Short", "Half", "BFloat16"),
    4: ("Int", "Float", "QInt32"),
    8: ("Long", "Double", "ComplexFloat"),
    16: ("ComplexDouble",),
}
"""Storage class names, without the suffix ``Storage``, by bytes per item. The list is complete: tensors of newer dtypes
are saved as untyped storage."""
_PIECE = 2**20  # bytes read at a time


def check_torch_zip(file: BinaryIO, origin: str) -> None:
    """Verify that each record is uncompressed, matches its checksum, and has the size that its tensor needs.

    `file` must be seekable. Raise CheckpointError, which names `origin`, otherwise.
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
    # torch.serialization.set_crc32_options(False) writes 0 for all checksums: then there is nothing to verify.
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
    if unpickler.has_dtensors:
        raise CheckpointError(
            f"{origin} holds DTensors, so one rank's pieces of a sharded model: save whole tensors, by "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of "
            "torch.distributed.checkpoint.state_dict, or save all ranks' pieces by dcp.save"
        )
    for key, size in unpickler.sizes.items():
        found = records.get(f"{root}/data/{key}")
        if found is None or found.file_size != size:
            has = "none" if found is None else f"one of {found.file_size} bytes"
            raise CheckpointError(f"{origin} is damaged: it needs a record data/{key} of {size} bytes, and has {has}")


def _content(file: BinaryIO, record: zipfile.ZipInfo) -> Iterator[bytes]:
    """Read a record in pieces, from the offset that torch uses."""
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
    """Stands in for a storage class."""

    item_size: int
    """Bytes per item."""


class _SizesUnpickler(BoundedUnpickler):
    """Collects from a pickle only the sizes of its records."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.sizes: dict[str, int] = {}
        """Bytes by record key."""
        self.has_dtensors = False

    def find_class(self, _module: str, name: str, /) -> Any:
        """Return a stand-in for a name."""
        self.has_dtensors |= name == "DTensor"
        kind = name.removesuffix("Storage")
        sizes = [size for size, kinds in _ITEM_SIZES.items() if kind in kinds and kind != name]
        return type(name, (_Storage,), {"item_size": sizes[0]}) if sizes else Inert

    def persistent_load(self, reference: Any) -> Any:
        """Note the size of the referenced record, and return a stand-in for its content."""
        kind, storage, key, _location, count = reference
        if kind != "storage" or not issubclass(storage, _Storage) or type(count) is not int or count < 0:
            raise pickle.UnpicklingError(f"it refers to {str(reference)[:100]}")
        size = self.sizes.setdefault(key, count * storage.item_size)
        if size != count * storage.item_size:
            raise pickle.UnpicklingError(f"it needs data/{key} in two sizes")
        return Inert()
