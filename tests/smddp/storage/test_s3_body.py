import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.storage.s3_upload import Body

SIZES = st.lists(st.sampled_from([0, 1, 7, 60_000, 70_000, 1_200_000]), max_size=6)


def pieces_of(sizes: list[int]) -> list[memoryview]:
    return [memoryview(bytes([65 + index]) * size) for index, size in enumerate(sizes)]


@given(sizes=SIZES, data=st.data())
def test_any_part_of_any_pieces_is_read_as_if_it_were_one_file(sizes: list[int], data: st.DataObject) -> None:
    pieces = pieces_of(sizes)
    whole = b"".join(pieces)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    body = Body(pieces, start, stop)
    assert len(body) == stop - start
    assert body.crc32() == base64.b64encode(zlib.crc32(whole[start:stop]).to_bytes(4, "big")).decode()
    for _ in range(2):  # botocore begins anew when it retries
        assert b"".join(iter(lambda: bytes(body.read(16384)), b"")) == whole[start:stop]
        assert body.tell() == stop - start
        assert body.seek(0) == 0
    assert body.read() == whole[start:stop]
    body.seek(0)
    memory = memoryview(bytearray(data.draw(st.sampled_from([1000, 4096, 100_000]))))
    filled = list(iter(lambda: bytes(memory[: body.readinto(memory)]), b""))
    assert b"".join(filled) == whole[start:stop]


def test_large_pieces_are_not_copied() -> None:
    content = bytearray(3 * 2**20)
    body = Body([memoryview(content)])
    piece = body.read(16384)
    assert isinstance(piece, memoryview)
    content[0] = 7
    assert piece[0] == 7


def test_small_pieces_are_joined() -> None:
    body = Body([memoryview(bytes(100))] * 5000)
    count = len(list(iter(lambda: bytes(body.read(16384)), b"")))
    assert count == 1


def test_pieces_of_other_types_are_bytes() -> None:
    numbers = memoryview(bytes(range(16))).cast("I")
    assert Body([numbers], 3, 9).read() == bytes(range(3, 9))


@pytest.mark.parametrize("content", [[], [memoryview(b"")]])
def test_nothing_is_a_body_as_well(content: list[memoryview]) -> None:
    body = Body(content)
    assert len(body) == 0
    assert body.read(10) == b""
