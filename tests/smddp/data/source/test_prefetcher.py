"""The order of parts, whatever the order they come in; without a server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from smddp.data.source import prefetcher
from smddp.data.source.prefetcher import Prefetcher, StreamState
from smddp.errors import DataError
from smddp.storage.s3_bucket import Version
from smddp.storage.s3_errors import Cancelled
from tests.smddp.data.source.conftest import stream_threads

CONTENT = random.Random(0).randbytes(1000)
VERSION = Version(etag="x", size=len(CONTENT))


class Ranges:
    """Gives the bytes in pieces, at random times; breaks off at a place."""

    def __init__(self, broken_at: int = -100) -> None:
        self.broken_at = broken_at
        self.most = self.under_way = 0
        self.lock = threading.Lock()

    def fill(
        self, key: str, start: int, memory: memoryview, version: Version | None, *, arrived: Callable[[int], None],
        answered: Callable[[Version], None], cancelled: Callable[[], bool],
    ) -> int:  # fmt: skip
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            answered(VERSION)
            end = min(start + len(memory), len(CONTENT))
            for position in range(start, end, 10):
                if position <= self.broken_at < position + 10:
                    raise DataError("broken")
                time.sleep(random.random() * 0.001)
                count = min(10, end - position)
                memory[position - start : position - start + count] = CONTENT[position : position + count]
                arrived(position - start + count)
            return max(end - start, 0)
        finally:
            with self.lock:
                self.under_way -= 1


def read(ahead: Prefetcher, stream: StreamState, sizes: random.Random) -> bytes:
    content, memory = bytearray(), bytearray(300)
    while count := ahead.read_into(stream, memoryview(memory)[: sizes.randint(1, 300)]):
        content += memory[:count]
    return bytes(content)


@pytest.mark.parametrize("memory", [0, 150, 10_000])
@pytest.mark.parametrize("version", [None, VERSION])
def test_the_bytes_come_in_their_order(memory: int, version: Version | None) -> None:
    ranges, sizes = Ranges(), random.Random(memory)
    ahead = Prefetcher(ranges, connections=3, memory=memory, part_size=70)  # type: ignore[arg-type]
    for start, stop in (0, None), (5, 900), (70, 140), (0, 0), (999, 5000):
        stream = ahead.start("key", start, stop, version)
        assert read(ahead, stream, sizes) == CONTENT[start:stop]
        ahead.stop(stream)
        assert stream_threads() == 0
    assert ranges.most <= (3 if memory else 1)


@pytest.mark.parametrize("place", [0, 35, 70, 105, 999])
def test_what_broke_off_is_never_passed_over(place: int) -> None:
    ahead = Prefetcher(Ranges(place), connections=3, memory=10_000, part_size=70)  # type: ignore[arg-type]
    stream = ahead.start("key", 0, None, VERSION)
    content, memory = bytearray(), memoryview(bytearray(300))
    for _ in range(3):  # whoever goes on nevertheless hears it again
        with pytest.raises(DataError, match="broken"):
            while count := ahead.read_into(stream, memory):
                content += memory[:count]
                time.sleep(0.002)
    assert content == CONTENT[: place // 10 * 10]
    ahead.stop(stream)


def test_a_stream_that_is_waited_for_goes_before_those_that_have_much() -> None:
    ranges = Ranges()
    ahead = Prefetcher(ranges, connections=2, memory=140, part_size=70)  # type: ignore[arg-type]
    streams = [ahead.start("key", 0, None, VERSION) for _ in range(5)]
    contents = [bytearray() for _ in streams]
    memory = memoryview(bytearray(300))
    for turn in range(200):
        number = (turn * turn) % 5
        contents[number] += memory[: ahead.read_into(streams[number], memory)]
    for stream, content in zip(streams, contents, strict=True):
        assert bytes(content) + read(ahead, stream, random.Random(0)) == CONTENT
        ahead.stop(stream)
    assert ranges.most <= 2


class Stuck(Ranges):
    """Never gives what comes after the first part; the fetch ends when the stream is closed."""

    def fill(self, key, start, memory, version, *, arrived, answered, cancelled) -> int:  # type: ignore[no-untyped-def]
        if start == 0 or key != "stuck":
            return super().fill(key, start, memory, version, arrived=arrived, answered=answered, cancelled=cancelled)
        while not cancelled():
            time.sleep(0.001)
        raise Cancelled


@pytest.mark.timeout(30)
def test_a_stream_after_one_that_was_forgotten_is_read_though_a_thread_still_waits(
    monkeypatch: pytest.MonkeyPatch, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    monkeypatch.setattr(prefetcher, "_GLANCE", 60.0)
    ahead = Prefetcher(Stuck(), connections=2, memory=10_000, part_size=500)  # type: ignore[arg-type]
    forgotten = ahead.start("stuck", 0, None, VERSION)
    wait_for(lambda: len(ahead._idle) == 1)
    with ahead._locked():
        ahead.stop(forgotten)  # the garbage collector's way
    wait_for(lambda: stream_threads() == 1)  # the busy thread has ended; the other looks in a minute
    stream = ahead.start("key", 0, None, VERSION)
    assert read(ahead, stream, random.Random(0)) == CONTENT
    ahead.stop(stream)
    assert stream_threads() == 0


def test_streams_that_are_opened_and_closed_in_many_threads_are_all_read() -> None:
    ahead = Prefetcher(Ranges(), connections=3, memory=300, part_size=200)  # type: ignore[arg-type]

    def open_and_close(seed: int) -> None:
        sizes = random.Random(seed)
        for turn in range(20):
            stream = ahead.start("key", 0, None, None)
            if turn % 3:
                assert read(ahead, stream, sizes) == CONTENT
            ahead.stop(stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_and_close, range(4)))
    assert stream_threads() == 0


def test_a_part_that_there_is_no_memory_for_is_an_error() -> None:
    ahead = Prefetcher(Ranges(), connections=2, memory=0, part_size=2**62)  # type: ignore[arg-type]
    stream = ahead.start("a", 0, None, None)
    with pytest.raises(DataError, match="smaller part_size"):
        ahead.read_into(stream, memoryview(bytearray(10)))
    ahead.stop(stream)
    assert not stream_threads()


def test_a_stream_without_a_thread_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def barred(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead = Prefetcher(Ranges(), connections=2, memory=0, part_size=100)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", barred)
        with pytest.raises(DataError, match="can't start new thread"):
            ahead.start("a", 0, None, None)
    stream = ahead.start("b", 0, None, None)
    assert read(ahead, stream, random.Random(0)) == CONTENT
    ahead.stop(stream)
    assert not stream_threads()
