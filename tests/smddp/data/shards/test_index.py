"""The index: counted or read, and never believed where it does not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from smddp.data.shards import ShardIndex
from smddp.data.shards.shard import MARK_EVERY, ShardSequence, open_reader
from smddp.data.source import Blob, DirectorySource
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import MemorySource, fill, number_of, numbered, tar_bytes

SIZES = [3, 0, 600, 256]


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_counts_the_records_and_marks_where_some_begin(tmp_path: Path, kind: str) -> None:
    files = numbered(SIZES, kind=kind)
    for source in (MemorySource(files), DirectorySource(fill(tmp_path, files))):
        index = ShardIndex.of(source)
        assert [(shard.name, shard.size, shard.records) for shard in index.shards] == [
            (name, len(content), size) for (name, content), size in zip(files.items(), SIZES, strict=True)
        ]
        assert (index.records, index.size) == (sum(SIZES), sum(map(len, files.values())))
        assert [len(shard.marks) for shard in index.shards] == [-(-size // MARK_EVERY) for size in SIZES]
        shard = index.shards[2]
        for place, offset in enumerate(shard.marks):
            record = open_reader(source, shard.blob, number=place * MARK_EVERY, offset=offset).read()
            assert record is not None
            number = place * MARK_EVERY
            assert (record.number, record.offset, number_of(record)) == (number, offset, 3 + number)


def test_is_the_same_after_a_way_through_json() -> None:
    index = ShardIndex.of(MemorySource(numbered(SIZES)))
    again = ShardIndex.from_json(json.loads(json.dumps(index.to_json())))
    assert again == index
    assert again.fingerprint == index.fingerprint


def test_an_index_with_fewer_marks_is_read_as_well() -> None:
    files = numbered([600, 3])
    written = ShardIndex.of(MemorySource(files)).to_json()
    earlier = {**written, "mark_every": 256, "shards": []}
    for shard in written["shards"]:
        earlier["shards"].append({**shard, "marks": shard["marks"][:: 256 // MARK_EVERY]})
    source = MemorySource({**files, "shards.json": json.dumps(earlier).encode()})
    index = ShardIndex.of(source)
    assert [shard.mark_every for shard in index.shards] == [256, 256]
    assert ShardIndex.from_json(json.loads(json.dumps(index.to_json()))).shards[0].marks == index.shards[0].marks
    with ShardSequence(source, index.shards).cursor() as cursor:
        assert [number_of(cursor.read(position)) for position in (599, 602, 255, 256, 0)] == [599, 602, 255, 256, 0]


def test_the_fingerprint_is_that_of_names_sizes_and_counts() -> None:
    files = numbered(SIZES)
    prints = {
        ShardIndex.of(MemorySource(each)).fingerprint
        for each in (
            files,
            {**files, "z.jsonl": b""},
            numbered([4, *SIZES[1:]]),
            {"a" + k: v for k, v in files.items()},
        )
    }
    assert len(prints) == 4


def test_what_was_written_beside_the_shards_is_read_instead_of_them(tmp_path: Path) -> None:
    source = DirectorySource(fill(tmp_path, numbered(SIZES)))
    index = ShardIndex.of(source)
    assert index.write(tmp_path) == tmp_path / "shards.json"
    for name in ("part-000.jsonl", "part-002.jsonl"):  # nobody looks into them
        (tmp_path / name).write_bytes(bytes((tmp_path / name).stat().st_size))
    assert ShardIndex.of(source) == index
    assert sorted(path.name for path in tmp_path.iterdir()) == [*numbered(SIZES), "shards.json"]


def test_shards_that_the_index_does_not_know_are_gone_through(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = DirectorySource(fill(tmp_path, numbered(SIZES)))
    ShardIndex.of(source).write(tmp_path)
    fill(tmp_path, {"z.jsonl": b'{"id": 2}\n'})
    (tmp_path / "part-003.jsonl").unlink()
    index = ShardIndex.of(source)
    assert [shard.records for shard in index.shards] == [*SIZES[:3], 1]
    assert index.missing == ("part-003.jsonl",)
    assert "does not know 1 of 4 shards, z.jsonl for one" in caplog.text
    assert "1 shard that shards.json knows is not in" in caplog.text


def test_a_shard_of_another_size_than_the_index_says_is_refused(tmp_path: Path) -> None:
    source = DirectorySource(fill(tmp_path, numbered(SIZES)))
    ShardIndex.of(source).write(tmp_path)
    (tmp_path / "part-000.jsonl").write_bytes(b'{"id": 1}\n')
    with pytest.raises(
        DataError, match=r"part-000.jsonl in .* has 10 bytes, and \d+ by the shards.json there: restore it"
    ):
        ShardIndex.of(source)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"version": 1',
        b'{"version": 2, "mark_every": 256, "shards": []}',
        b'{"version": 1, "mark_every": 256}',
        b'{"version": 1, "mark_every": 256, "shards": [1]}',
        b'{"version": 1, "mark_every": 256, "shards": [{}]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_index_that_is_none_is_left_alone(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    index = ShardIndex.of(MemorySource({**numbered(SIZES), "shards.json": content}))
    assert index.records == sum(SIZES)
    assert "shards.json in memory is not used" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"records": -1},
        {"records": 600.0},
        {"records": 5000},
        {"records": True},
        {"marks": [0, 5, 5]},
        {"marks": [0, 5, 10**9]},
        {"marks": [0, 5]},
        {"marks": "012"},
        {"name": 7},
        {"more": 1},
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    value = ShardIndex.of(MemorySource(numbered(SIZES))).to_json()
    value["shards"][2] = {**value["shards"][2], **change}
    with pytest.raises(DataError):
        ShardIndex.from_json(value)


def test_a_shard_that_is_damaged_is_named_and_ends_it_all() -> None:
    files = {**numbered([3000] * 20), "part-007.jsonl": b'{"id": 1}\n{"id"'}
    source = MemorySource(files)
    with pytest.raises(DataError, match=r"memory/part-007\.jsonl, record 1 at byte 10: the last line is cut"):
        ShardIndex.of(source)
    assert source.open_files == 0


def test_a_tar_file_without_its_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    content = tar_bytes([("a.x", b"1"), ("b.x", b"2")])
    assert ShardIndex.of(MemorySource({"a.tar": content[:2048]})).records == 2
    assert "a.tar in memory ends without a tar file's mark of its end" in caplog.text
    caplog.clear()
    ShardIndex.of(MemorySource({"a.tar": content}))
    assert "mark of its end" not in caplog.text


def test_says_what_it_went_through(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ShardIndex.of(MemorySource(numbered(SIZES)))
    assert "went through 4 shards of memory" in caplog.text


def test_refuses_a_place_without_shards() -> None:
    with pytest.raises(DataError, match=r"no shards in memory, among 1 file: shards are \*\.tar and \*\.jsonl"):
        ShardIndex.of(MemorySource({"a.txt": b""}))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.TGZ", "a.jsonl.zst", "sub/a.tar.bz2"])
def test_refuses_what_is_compressed(name: str) -> None:
    with pytest.raises(DataError, match=f"{name} in memory is compressed.*decompress"):
        ShardIndex.of(MemorySource({**numbered([3]), name: b""}))


def test_what_changed_since_is_named() -> None:
    files = numbered([3, 4])
    index = ShardIndex.of(MemorySource(files))
    index.check(MemorySource({**files, "new.jsonl": b"", "shards.json": b""}))
    with pytest.raises(DataError, match=r"part-001\.jsonl has 5 bytes in memory, where the index has \d+"):
        index.check(MemorySource({**files, "part-001.jsonl": b"12345"}))
    with pytest.raises(DataError, match=r"part-000\.jsonl is missing"):
        index.check(MemorySource({"part-001.jsonl": files["part-001.jsonl"]}))


def test_a_shard_is_a_blob() -> None:
    shard = ShardIndex.of(MemorySource({"a.jsonl": b"{}\n"})).shards[0]
    assert shard.blob == Blob(name="a.jsonl", size=3)
