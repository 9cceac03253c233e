"""What is written is a safetensors file, and what is read is what was written."""

from __future__ import annotations

import json
import random
import struct

import pytest
import safetensors.torch
import torch

from smddp.checkpoint.tensors import DTYPES, decode, encode
from smddp.errors import CheckpointError


def content(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"".join(encode(tensors))), dtype=torch.uint8)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the bit, nan payloads included."""
    as_bytes = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*as_bytes)


EVERY_DTYPE = {str(dtype): torch.randint(0, 100, (3, 5)).to(dtype) for dtype in DTYPES}
SHAPES = {
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "ünïcode \n name": torch.ones(1),
    "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    "bool": torch.tensor([True, False, True]),
    "odd": torch.arange(7, dtype=torch.uint8),
}
STRANGE = {
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.randn(20)[::3],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "negated": torch.randn(3, dtype=torch.complex64).conj().imag,
    "parameter": torch.nn.Parameter(torch.randn(2, 2)),
}
ALL = {**EVERY_DTYPE, **SHAPES, **STRANGE}


def test_every_dtype_shape_and_stride_comes_back() -> None:
    back = decode(content(ALL))
    assert set(back) == set(ALL)
    for name, tensor in ALL.items():
        assert same(back[name], tensor.detach().resolve_conj().resolve_neg()), name
        assert back[name].is_contiguous()


def test_the_safetensors_package_reads_what_is_written() -> None:
    back = safetensors.torch.load(bytes(content(ALL).numpy()))
    assert set(back) == set(ALL)
    for name, tensor in ALL.items():
        assert same(back[name], tensor.detach().resolve_conj().resolve_neg()), name


def test_what_the_safetensors_package_writes_is_read() -> None:
    tensors = {**EVERY_DTYPE, **SHAPES}
    data = safetensors.torch.save(tensors, metadata={"by": "others"})
    back = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    assert all(same(back[name], tensor) for name, tensor in tensors.items())


def test_the_tensors_do_not_share_memory_with_the_file_or_each_other() -> None:
    data = content({"a": torch.zeros(4), "b": torch.zeros(4)})
    back = decode(data)
    back["a"].fill_(1)
    data.fill_(255)
    assert back["b"].tolist() == [0, 0, 0, 0]
    assert back["a"].untyped_storage().nbytes() == 16


def test_a_file_without_tensors() -> None:
    assert decode(content({})) == {}


def file_with(header: object, values: bytes = b"") -> torch.Tensor:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return torch.frombuffer(bytearray(struct.pack("<Q", len(text)) + text + values), dtype=torch.uint8)


@pytest.mark.parametrize(
    "data",
    [
        torch.empty(0, dtype=torch.uint8),
        torch.zeros(3, dtype=torch.uint8),
        file_with(b"not json"),
        file_with([]),
        file_with({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
        file_with({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"12345678"),
        file_with({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, b"12345678"),
        file_with({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        file_with({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"12345678"),
        file_with({"a": []}),
    ],
)
def test_refuses_what_is_no_such_file(data: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        decode(data)


def test_random_damage_raises_nothing_but_a_checkpoint_error() -> None:
    dice, data = random.Random(0), bytes(content(EVERY_DTYPE).numpy())
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(min(len(data), 400))] = dice.randrange(256)
        try:
            decode(torch.frombuffer(damaged[: dice.randint(9, len(data))], dtype=torch.uint8))
        except CheckpointError:
            continue
