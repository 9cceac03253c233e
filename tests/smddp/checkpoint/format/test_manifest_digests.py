"""A file's digest follows from those of its tensors, and what stands in digests.json is believed only if it fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.format.manifest import FileDigests, digests_from_json, digests_to_json
from smddp.errors import CheckpointError

DIGESTS = st.text("0123456789abcdef", min_size=32, max_size=32)
FILES = st.dictionaries(
    st.text(),
    st.builds(FileDigests, header=DIGESTS, tensors=st.dictionaries(st.text(), DIGESTS, max_size=4)),
    max_size=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | DIGESTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["header", "tensors", "model.safetensors"]), inner, max_size=3)
    ),
)


@given(files=FILES)
def test_comes_back_in_the_same_order(files: dict[str, FileDigests]) -> None:
    back = digests_from_json(digests_to_json(files))
    assert back == files
    assert [list(each.tensors) for each in back.values()] == [list(each.tensors) for each in files.values()]


def test_the_digest_of_a_file_is_that_of_its_digests() -> None:
    pieces = [b"header", b"one", b"", b"three"]
    header, *tensors = (xxhash.xxh3_128_hexdigest(piece) for piece in pieces)
    digests = FileDigests(header=header, tensors=dict(zip("cab", tensors, strict=True)))
    expected = xxhash.xxh3_128_hexdigest(b"".join(xxhash.xxh3_128_digest(piece) for piece in pieces))
    assert digests.xxh3_128 == expected
    in_another_order = FileDigests(header=header, tensors=dict(zip("cab", reversed(tensors), strict=True)))
    assert in_another_order.xxh3_128 != expected


def test_a_tensor_called_header_is_not_mistaken_for_it() -> None:
    with pytest.raises(CheckpointError, match="32 hexadecimal digits"):
        FileDigests(header="nonsense", tensors={"header": "0" * 32})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 50_000,
        b"\xff",
        b"[]",
        b"5",
        b'{"a": 5}',
        b'{"a": {}}',
        b'{"a": {"header": "%s"}}' % (b"0" * 32),
        b'{"a": {"header": "%s", "tensors": []}}' % (b"0" * 32),
        b'{"a": {"header": "%s", "tensors": {}}}' % (b"0" * 31),
        b'{"a": {"header": "%s", "tensors": {"x": 5}}}' % (b"0" * 32),
        b'{"a": {"header": "%s", "tensors": {"x": "%s"}}}' % (b"0" * 32, b"G" * 32),
        b'{"a": {"header": "%(d)s", "tensors": {"x": "%(d)s", "x": "%(d)s"}}}' % {b"d": b"0" * 32},
        b'{"a": {"header": "%(d)s", "tensors": {}}, "a": {"header": "%(d)s", "tensors": {}}}' % {b"d": b"0" * 32},
    ],
)
def test_refuses_what_is_no_such_file(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"digests\.json"):
        digests_from_json(content)


@given(content=st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_say_nothing_but_a_checkpoint_error_comes_of_it(content: bytes) -> None:
    try:
        files: Any = digests_from_json(content)
    except CheckpointError:
        return
    assert all(len(each.xxh3_128) == 32 for each in files.values())
