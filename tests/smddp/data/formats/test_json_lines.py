"""Records of JSON lines."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.shards import RawRecord
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import Body


def reader_of(content: bytes, *, is_pipe: bool = False, **options: int) -> JsonLinesReader:
    if is_pipe:
        return JsonLinesReader(Body(content), name="shard.jsonl", **options)  # type: ignore[arg-type]
    return JsonLinesReader(io.BytesIO(content), name="shard.jsonl", **{"size": len(content), **options})


def read_all(content: bytes, **options: Any) -> list[RawRecord]:
    with contextlib.closing(reader_of(content, **options)) as reader:
        return list(iter(reader.read, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_pipe", [False, True])
def test_each_line_that_is_not_blank_is_a_record(is_pipe: bool) -> None:
    records = read_all(b'{"a": 1}\n\n  \r\n{"a": "\xc3\xbc"}\r\n{"a": 3}', is_pipe=is_pipe)
    assert [record.parse()["a"] for record in records] == [1, "ü", 3]
    assert [(record.number, record.offset) for record in records] == [(0, 0), (1, 14), (2, 27)]
    assert read_all(b"", is_pipe=is_pipe) == []


def test_reading_may_begin_at_any_record_and_pass_over_some() -> None:
    content = b'{"n": 0}\n{"n": 1}\n\n{"n": 2}\n{"n": 3}\n'
    reader = reader_of(content[9:], number=1, offset=9, size=len(content))
    assert reader.skip() == 9
    record = reader.read()
    assert record is not None
    assert (record.number, record.offset, record.parse()) == (2, 19, {"n": 2})
    assert (reader.number, reader.skip(), reader.skip(), reader.number) == (3, 28, None, 4)


@pytest.mark.parametrize("end", [b'{"text": "half a', b'{"a": 1', b"{", b'{"a": "\xc3'])
def test_a_last_line_that_is_cut_is_no_record(end: bytes) -> None:
    with pytest.raises(DataError, match=rf"shard.jsonl, record 1 at byte 9: the last line is cut after {len(end)} "):
        read_all(b'{"a": 1}\n' + end)


def test_a_file_that_ends_too_early_is_noticed() -> None:
    with pytest.raises(DataError, match="record 1 at byte 9: the file ends here, though it had 20 bytes"):
        read_all(b'{"a": 1}\n', size=20)


@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_huge_line_takes_no_memory(is_pipe: bool) -> None:
    assert len(read_all(b'{"a": 1}\n', is_pipe=is_pipe, largest_record=9)) == 1
    reader = reader_of(b'{"a": 1}\n' + b"x" * 10_000_000, is_pipe=is_pipe, largest_record=100)
    assert reader.skip() == 0
    with pytest.raises(DataError, match="record 1 at byte 9: the line has more than 100 bytes, the most of a record"):
        reader.skip()
    assert reader.offset == 9 + 101


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nothing", "the line is not JSON: Expecting value"),
        (b"\xff\xfe{}", "the line is not JSON: .*codec"),
        (b"[" * 100_000, "the line is not JSON: .*recursion"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "the line is not JSON: .*digits"),
        (b"[1]", "the line is list, not an object"),
        (b"null", "the line is NoneType, not an object"),
    ],
)
def test_a_line_that_is_no_object_is_named(line: bytes, message: str) -> None:
    record = read_all(b'{"a": 1}\n' + line + b"\n")[1]
    with pytest.raises(DataError, match=f"shard.jsonl, record 1 at byte 9: {message}"):
        record.parse()


def test_a_disk_that_fails_is_named() -> None:
    class Failing(Body):
        def read(self, count: int) -> bytes:
            raise OSError(5, "Input/output error")

    reader = JsonLinesReader(Failing(b""), name="shard.jsonl", offset=7)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"cannot read shard\.jsonl at byte 7: Input/output error"):
        reader.read()
