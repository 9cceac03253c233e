"""Where each tensor lies in a safetensors file: worked out when it is written, and checked when it is read.

The format (https://github.com/huggingface/safetensors): eight bytes with the length of the header, the header, a JSON
object {name: {"dtype", "shape", "data_offsets"}}, and the values, little-endian, one tensor after the other. It is
written and read here rather than by the safetensors package because the tensors are copied, hashed and written by
several threads and ranks at a time, and because what is read goes straight to where it stays, hashed on its way.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smddp.checkpoint.format import strict_json
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
"""What the format can hold, and what it calls it."""

LARGEST_HEADER = 100_000_000
"""Bytes of JSON; the safetensors package reads no more."""

MOST_DIMENSIONS = 64

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
    """Where its values begin, in bytes from the beginning of the file."""
    size: int
    """Bytes of its values."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Layout:
    """A safetensors file, but for the values."""

    header: bytes
    """How the file begins: the length of the JSON, the JSON, and spaces up to the first tensor."""
    entries: tuple[Entry, ...]
    """Its tensors in the order of the file: one begins where the one before ends."""
    size: int
    """Bytes of the whole file."""

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Layout:
        """Lay out a file. The same for the same names, dtypes and shapes, in whatever order they come.

        Each tensor begins at a multiple of its own width.

        Args:
            tensors: By name, of the dtypes that the format has, on any device. Their values are not looked at.

        Raises:
            CheckpointError: There are more of them, or longer names, than a file can have.
        """
        ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
        content: dict[str, Any] = {}
        end = 0
        for name, tensor in ordered:
            start, end = end, end + tensor.numel() * tensor.dtype.itemsize
            content[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        text = json.dumps(content, separators=(",", ":")).encode()
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
        """Read the beginning of a file that nobody vouches for.

        Args:
            header: As many bytes as `header_size` says.
            size: Bytes of the whole file.

        Raises:
            CheckpointError: It is not the beginning of a safetensors file of this size. The message is only the reason.
        """
        try:
            content = strict_json.loads(header[_LENGTH.size :])
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
    """Return the length of a file's header, with the eight bytes that say it.

    Args:
        beginning: The first eight bytes of the file, or more.
        size: Bytes of the whole file.

    Raises:
        CheckpointError: No safetensors file of this size begins so.
    """
    if len(beginning) < _LENGTH.size:
        raise CheckpointError(f"not a safetensors file: it has {size} bytes")
    (length,) = _LENGTH.unpack_from(beginning)
    if length > min(size - _LENGTH.size, LARGEST_HEADER):
        raise CheckpointError(f"not a safetensors file: a header of {length} bytes in a file of {size}")
    return int(_LENGTH.size + length)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU: its own memory, not a copy."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def _entry(name: str, fields: Any, offset: int) -> Entry:
    dtype, shape = _BY_NAME[fields["dtype"]], fields["shape"]
    start, end = fields["data_offsets"]
    if not (type(shape) is list and len(shape) <= MOST_DIMENSIONS and all(_is_count(each) for each in [*shape, start])):
        raise ValueError(f"the shape {str(shape)[:100]} at {str(start)[:100]}")
    # Even an empty tensor's strides must be numbers of 64 bits.
    if math.prod(max(each, 1) for each in shape) * dtype.itemsize >= 2**63:
        raise ValueError(f"the shape {str(shape)[:100]}")
    size = math.prod(shape) * dtype.itemsize
    if type(end) is not int or end - start != size:
        raise ValueError(f"{size} bytes of {str(name)[:100]!r} from {start} to {str(end)[:100]}")
    return Entry(name=name, dtype=dtype, shape=tuple(shape), start=offset + start, size=size)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
