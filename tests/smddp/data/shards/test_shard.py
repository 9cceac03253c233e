"""Records by their position in a sequence of shards."""

from __future__ import annotations

from smddp.data.shards import ShardIndex
from smddp.data.shards.shard import MARK_EVERY, ShardSequence
from tests.smddp.data.shards.by_hand import MemorySource, jsonl_bytes, number_of, numbered


def test_reads_any_record_in_any_order() -> None:
    source = MemorySource(numbered([3, 0, 600, 0, 40]))
    sequence = ShardSequence(source, ShardIndex.of(source).shards)
    assert len(sequence) == 643
    with sequence.cursor() as cursor:
        for position in (0, 2, 3, 602, 603, 642, 5, 4, 300, 300, 642, 0):
            assert number_of(cursor.read(position)) == position
            assert source.open_files == 1
    assert source.open_files == 0


def test_passes_over_what_is_near_and_seeks_what_is_far() -> None:
    source = MemorySource({"a.jsonl": jsonl_bytes({"id": number, "pad": "x" * 20_000} for number in range(1000))})
    sequence = ShardSequence(source, ShardIndex.of(source).shards)
    source.opened.clear()
    with sequence.cursor() as cursor:
        for position in (0, 50, 255, 300):
            assert number_of(cursor.read(position)) == position
        assert source.opened == [("a.jsonl", 0)]
        assert number_of(cursor.read(999)) == 999
        assert source.opened[1:] == [("a.jsonl", sequence.shards[0].marks[999 // MARK_EVERY])]


def test_no_more_is_fetched_than_what_is_wanted_and_what_is_wanted_nevertheless_comes() -> None:
    source = MemorySource({"a.jsonl": jsonl_bytes({"id": number, "pad": "x" * 2_000} for number in range(1000))})
    sequence = ShardSequence(source, ShardIndex.of(source).shards)
    source.bodies.clear()
    with sequence.cursor(stop=100) as cursor:
        assert [number_of(cursor.read(position)) for position in range(100)] == list(range(100))
        assert len(source.bodies) == 1
        assert len(source.bodies[0]._file.getvalue()) < 400_000
        assert [number_of(cursor.read(position)) for position in range(100, 1000)] == list(range(100, 1000))
        assert source.open_files == 1
    assert source.open_files == 0
