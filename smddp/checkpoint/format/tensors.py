"""Tensors as the bytes of a safetensors file: the file's layout, and the memory that it is written from and read into.

The format (https://github.com/huggingface/safetensors): eight bytes with the length of the header; the header, a JSON
object {name: {"dtype", "shape", "data_offsets"}}; then the values, little-endian, one tensor after the other. This
module replaces the safetensors package because several threads and ranks copy, hash and write the tensors at a time,
and because reading goes directly to the final memory and hashes on the way.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smddp.checkpoint.format.manifest import parse_json
from smddp.errors import CheckpointError

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The supported dtypes and their names in the format."""

LARGEST_HEADER = 100_000_000
"""Bytes of JSON, the limit of the safetensors package."""

MOST_DIMENSIONS = 64

_HUGE_PAGE = 2 * 2**20
"""Bytes. The kernel zeroes each page on its first access. With pages of 4 KiB this takes several times as long as
reading a checkpoint into the memory; with pages of 2 MiB the time is negligible."""

_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")


@dataclass(kw_only=True, slots=True, frozen=True)
class Entry:
    """One tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Offset of the values, in bytes from the beginning of the file."""
    size: int
    """Bytes of the values."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Layout:
    """The header and offsets of a safetensors file."""

    header: bytes
    """The bytes before the first tensor: the length of the JSON, the JSON, and padding."""
    entries: tuple[Entry, ...]
    """The tensors in the order of the file, without gaps."""
    size: int
    """Bytes of the whole file."""

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Layout:
        """Compute the layout of a file, which depends only on names, dtypes and shapes, not on their order or values.

        Each tensor begins at a multiple of its dtype's width. Raise CheckpointError if the header is too large.
        """
        ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
        content: dict[str, Any] = {}
        end = 0
        for name, tensor in ordered:
            start, end = end, end + tensor.numel() * tensor.dtype.itemsize
            content[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        described = content if metadata is None else {_METADATA: dict(metadata), **content}
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > LARGEST_HEADER:
            raise CheckpointError(
                f"{len(tensors)} tensors, such as {ordered[0][0][:100]!r}, need a header of {len(text)} bytes in a "
                f"file, and safetensors reads {LARGEST_HEADER} at most: keep small values together in one tensor, or "
                "divide the state into several parts"
            )
        header = _LENGTH.pack(len(text)) + text
        entries = tuple(_entry(name, fields, len(header)) for name, fields in content.items())
        return cls(header=header, entries=entries, size=len(header) + end)

    @classmethod
    def parse(cls, header: bytes, size: int) -> Layout:
        """Parse an untrusted header, the first `header_size` bytes of a file of `size` bytes.

        Raise CheckpointError, whose message is only the reason, if it does not fit a safetensors file of this size.
        """
        try:
            content = parse_json(header[_LENGTH.size :])
            content.pop(_METADATA, None)
            entries = sorted(
                (_entry(name, fields, len(header)) for name, fields in content.items()),
                key=lambda entry: (entry.start, entry.size),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"not a safetensors file: {type(error).__name__}: {error}") from error
        end = len(header)
        for entry in entries:
            if entry.start != end or entry.start % entry.dtype.itemsize:
                raise CheckpointError(
                    f"not a safetensors file: {entry.name[:100]!r}, {entry.dtype}, begins at {entry.start} after {end}"
                )
            end += entry.size
        if end != size:
            raise CheckpointError(f"not a safetensors file: its tensors end at {end}, the file at {size}")
        return cls(header=header, entries=tuple(entries), size=size)


def header_size(beginning: bytes, size: int) -> int:
    """Return the bytes of a header, its eight length bytes included, from at least the first eight bytes of a file.

    Raise CheckpointError if a safetensors file of `size` bytes cannot begin so.
    """
    if len(beginning) < _LENGTH.size:
        raise CheckpointError(f"not a safetensors file: it has {size} bytes")
    (length,) = _LENGTH.unpack_from(beginning)
    if length > min(size - _LENGTH.size, LARGEST_HEADER):
        raise CheckpointError(f"not a safetensors file: a header of {length} bytes in a file of {size}")
    return int(_LENGTH.size + length)


def allocate(size: int, *, shared: bool = False) -> memoryview:
    """Allocate `size` zeroed bytes, at least one, freed by garbage collection. Raise MemoryError if that fails.

    `shared` memory stays common to this process and its forks. Otherwise a fork makes every page copy-on-write: the
    next write takes a second copy of the memory, and far longer.
    """
    try:
        flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        pages = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise MemoryError(f"no memory of {size} bytes: {error}") from error
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def tensor_at(memory: memoryview, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over memory from byte `start`, a multiple of the dtype's width, without a copy.

    Its storage covers only its own bytes, so it saves, moves and shares like any other tensor. It keeps `memory` alive.
    """
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(dtype).view(shape)


def empty_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor for values to read; its first write is fast if it is large."""
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.empty(shape, dtype=dtype) if size < _HUGE_PAGE else tensor_at(allocate(size), 0, dtype, shape)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def _entry(name: str, fields: Any, offset: int) -> Entry:
    dtype, shape = _BY_NAME[fields["dtype"]], fields["shape"]
    start, end = fields["data_offsets"]
    check_shape(shape, dtype)
    if not _is_count(start):
        raise ValueError(f"the shape {str(shape)[:100]} at {str(start)[:100]}")
    size = math.prod(shape) * dtype.itemsize
    if type(end) is not int or end - start != size:
        raise ValueError(f"{size} bytes of {str(name)[:100]!r} from {start} to {str(end)[:100]}")
    return Entry(name=name, dtype=dtype, shape=tuple(shape), start=offset + start, size=size)


def check_shape(shape: object, dtype: torch.dtype) -> None:
    """Raise ValueError unless an untrusted value is the shape, a list, of a tensor that torch can have."""
    if (
        type(shape) is not list
        or len(shape) > MOST_DIMENSIONS
        or not all(map(_is_count, shape))
        # torch computes strides in 64 bits, even for an empty tensor.
        or math.prod(max(each, 1) for each in shape) * dtype.itemsize >= 2**63
    ):
        raise ValueError(f"the shape {str(shape)[:100]}")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
