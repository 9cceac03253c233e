"""Tensors to the bytes of a safetensors file and back, without a copy more than needed.

The format (https://github.com/huggingface/safetensors): eight bytes with the length of the header, the header, a JSON
object {name: {"dtype", "shape", "data_offsets"}}, and the values, little-endian, one tensor after the other. It is
written and read here rather than by the safetensors package because every byte is hashed on its way to the disk, and
because what is read is decoded from the very bytes that were verified.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

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

_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_LENGTH = struct.Struct("<Q")


def encode(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """Give the content of a safetensors file, piece by piece.

    Args:
        tensors: by name, of the dtypes that the format has, on any device, with any strides.
    """
    # The widest first, so that each starts at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(_LENGTH.pack(len(text)) + text)
    for _, tensor in ordered:
        yield _bytes(tensor)


def decode(content: torch.Tensor) -> dict[str, torch.Tensor]:
    """Give the tensors of a safetensors file, on the CPU, each in memory of its own.

    Args:
        content: all bytes of the file, a flat tensor of uint8.

    Raises:
        CheckpointError: it is not such a file.
    """
    try:
        (length,) = _LENGTH.unpack(bytes(content[: _LENGTH.size].tolist()))
        values = content[_LENGTH.size + length :]
        header = json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length].numpy()))
        header.pop("__metadata__", None)
        return {name: _tensor(entry, values) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"not a safetensors file: {error}") from error


def _bytes(tensor: torch.Tensor) -> memoryview:
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def _tensor(entry: Mapping[str, Any], values: torch.Tensor) -> torch.Tensor:
    dtype, shape = _BY_NAME[entry["dtype"]], entry["shape"]
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(values) or end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the offsets {start} to {end} do not fit {shape} {dtype} in {len(values)} bytes")
    return values[start:end].clone().view(dtype).reshape(shape)
