"""What is laid out is a safetensors file, and a beginning that nobody vouches for is read without harm."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from smddp.checkpoint.format.tensors import DTYPES, LARGEST_HEADER, Layout, allocate, bytes_of, header_size, tensor_at
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import plain


def content_of(tensors: dict[str, torch.Tensor]) -> bytes:
    layout = Layout.of(tensors)
    values = [bytes(bytes_of(plain(tensors[entry.name]))) for entry in layout.entries]
    return b"".join([layout.header, *values])


def layout_in(content: bytes) -> Layout:
    return Layout.parse(content[: header_size(content[:8], len(content))], len(content))


def tensors_in(content: bytes) -> dict[str, torch.Tensor]:
    memory = allocate(len(content))
    memory[:] = content
    return {each.name: tensor_at(memory, each.start, each.dtype, each.shape) for each in layout_in(content).entries}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the bit, nan payloads included."""
    return (left.dtype, left.shape) == (right.dtype, right.shape) and bytes_of(plain(left)) == bytes_of(plain(right))


EVERY_DTYPE = {str(dtype): torch.randint(0, 100, (3, 5)).to(dtype) for dtype in DTYPES}
SHAPES = {
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "empty too": torch.empty(2, 0, 3, dtype=torch.int8),
    "ünïcode \n name": torch.ones(1),
    "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    "bool": torch.tensor([True, False, True]),
    "odd": torch.arange(7, dtype=torch.uint8),
    "deep": torch.ones([1] * 64),
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


def test_every_dtype_and_shape_comes_back() -> None:
    back = tensors_in(content_of(ALL))
    assert set(back) == set(ALL)
    for name, tensor in ALL.items():
        assert same(back[name], tensor), name


def test_the_safetensors_package_reads_what_is_laid_out() -> None:
    back = safetensors.torch.load(content_of(ALL))
    assert set(back) == set(ALL)
    for name, tensor in ALL.items():
        assert same(back[name], tensor), name


def test_what_the_safetensors_package_writes_is_read() -> None:
    tensors = {**EVERY_DTYPE, **SHAPES}
    back = tensors_in(safetensors.torch.save(tensors, metadata={"by": "others"}))
    assert all(same(back[name], tensor) for name, tensor in tensors.items())


def test_each_tensor_begins_at_a_multiple_of_its_width_and_where_the_one_before_ends() -> None:
    layout = Layout.of(ALL)
    end = len(layout.header)
    for entry in layout.entries:
        assert entry.start == end
        assert entry.start % entry.dtype.itemsize == 0
        end += entry.size
    assert layout.size == end


def test_what_is_laid_out_is_what_its_header_says() -> None:
    layout = Layout.of(ALL)
    assert Layout.parse(layout.header, layout.size) == layout


def test_neither_order_nor_values_nor_device_change_the_layout() -> None:
    backwards = {name: torch.empty_like(ALL[name], device="meta") for name in reversed(ALL)}
    assert Layout.of(backwards) == Layout.of(ALL)


def test_a_file_without_tensors() -> None:
    assert tensors_in(content_of({})) == {}


@given(
    tensors=st.dictionaries(
        st.text(), st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=4)), max_size=6
    )
)
def test_any_names_dtypes_and_shapes_are_laid_out_so_that_they_are_found_again(
    tensors: dict[str, tuple[torch.dtype, list[int]]],
) -> None:
    tensors.pop("__metadata__", None)
    layout = Layout.of({name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in tensors.items()})
    assert Layout.parse(layout.header, layout.size) == layout
    assert {each.name: (each.dtype, list(each.shape)) for each in layout.entries} == tensors


def file_with(header: object, values: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values


def tensor(dtype: Any = "F32", shape: Any = (2,), start: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


EIGHT = b"12345678"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(3),
        b"\xff" * 8,
        struct.pack("<Q", 2**63) + EIGHT,
        struct.pack("<Q", 9) + EIGHT,
        file_with(b"not json"),
        file_with(b"\xff\xfe"),
        file_with(b"[" * 50_000),
        file_with([]),
        file_with("text"),
        file_with(5),
        file_with(None),
        file_with({"a": tensor()}, b"1234"),
        file_with({"a": tensor()}, EIGHT + b"9"),
        file_with({}, EIGHT),
        file_with({"a": tensor(shape=[2], end=4)}, b"1234"),
        file_with({"a": tensor(shape=[1], start=4)}, EIGHT),
        file_with({"a": tensor(shape=[-1], start=4, end=0)}, EIGHT),
        file_with({"a": tensor(shape=[-2, -1])}, EIGHT),
        file_with({"a": tensor(shape=[1], end=4), "b": tensor(shape=[1], end=4)}, EIGHT),
        file_with({"a": tensor(), "b": tensor(shape=[1], start=4, end=8)}, EIGHT),
        file_with({"a": tensor(shape=[1], end=4), "b": tensor(shape=[1], start=5, end=9)}, EIGHT + b"9"),
        file_with({"a": tensor(dtype="F99")}, EIGHT),
        file_with({"a": tensor(dtype=["F32"])}, EIGHT),
        file_with({"a": tensor(dtype=None)}, EIGHT),
        file_with({"a": tensor(shape=[2.0])}, EIGHT),
        file_with({"a": tensor(shape=[True], end=4)}, b"1234"),
        file_with({"a": tensor(shape="2")}, EIGHT),
        file_with({"a": tensor(shape={"2": 2})}, EIGHT),
        file_with({"a": tensor(shape=None)}, EIGHT),
        file_with({"a": tensor(shape=[2**62, 4])}, EIGHT),
        file_with({"a": tensor(shape=[2**62, 2**62, 0], end=0)}),
        file_with({"a": tensor(shape=[10**400, 0], end=0)}),
        file_with({"a": tensor(shape=[1] * 65, end=4)}, b"1234"),
        file_with({"a": tensor(start=None)}, EIGHT),
        file_with({"a": tensor(end="8")}, EIGHT),
        file_with({"a": tensor(end=8.0)}, EIGHT),
        file_with({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, EIGHT),
        file_with({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT),
        file_with({"a": []}),
        file_with({"a": 5}),
        file_with(b'{"a":%(t)s,"a":%(t)s}' % {b"t": json.dumps(tensor()).encode()}, EIGHT),
        file_with({"a": tensor(dtype="U8", shape=[1], end=1), "b": tensor(shape=[1], start=1, end=5)}, b"12345"),
        file_with({"a": tensor(shape=[1], end=4), "b": tensor(shape=[2], start=8, end=16)}, b"123456789012"),
    ],
)
def test_refuses_what_is_no_such_file(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        layout_in(content)


def test_takes_what_is_just_right() -> None:
    """What the files above are one step away from."""
    content = file_with(
        {"a": tensor(shape=[1], end=4), "b": tensor(shape=[1, 1], start=4), "c": tensor(shape=[0], end=0)}
    )
    assert [entry.name for entry in layout_in(content + EIGHT).entries] == ["c", "a", "b"]


def test_a_header_longer_than_the_file_or_than_any_is_not_even_read() -> None:
    assert header_size(struct.pack("<Q", LARGEST_HEADER), 2**40) == 8 + LARGEST_HEADER
    for length, size in ((LARGEST_HEADER + 1, 2**40), (1000, 1007), (2**64 - 1, 2**40)):
        with pytest.raises(CheckpointError, match=f"a header of {length} bytes in a file of {size}"):
            header_size(struct.pack("<Q", length), size)


def test_a_header_that_nothing_reads_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"layer.{number}": torch.ones(1) for number in range(50)}
    longest = len(Layout.of(tensors).header) - 8
    monkeypatch.setattr("smddp.checkpoint.format.tensors.LARGEST_HEADER", longest)
    assert len(tensors_in(content_of(tensors))) == 50
    monkeypatch.setattr("smddp.checkpoint.format.tensors.LARGEST_HEADER", longest - 1)
    with pytest.raises(CheckpointError, match=f"50 tensors, such as 'layer.0', need a header of {longest} bytes"):
        Layout.of(tensors)


SMALL = content_of({**EVERY_DTYPE, **SHAPES})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([*DTYPES.values()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
)


@given(content=st.binary(max_size=200) | st.builds(file_with, JSON, st.binary(max_size=16)))
@example(content=file_with({"__metadata__": 5}))
def test_whatever_the_bytes_say_nothing_but_a_checkpoint_error_comes_of_it(content: bytes) -> None:
    try:
        layout = layout_in(content)
    except CheckpointError:
        return
    assert sum(entry.size for entry in layout.entries) + len(layout.header) == len(content)


@given(
    changes=st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 255)), min_size=1, max_size=4), end=st.integers(0)
)
def test_whatever_was_changed_nothing_but_a_checkpoint_error_comes_of_it(
    changes: list[tuple[int, int]], end: int
) -> None:
    damaged = bytearray(SMALL)
    for position, value in changes:
        damaged[position % len(SMALL)] = value
    try:
        tensors_in(bytes(damaged[: 1 + end % len(SMALL)]))
    except CheckpointError:
        return
