"""How much is asked of S3 for what a program reads."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.fast_file import reading
from estimators.local.engine.fast_file.reading import OpenObject, Reading
from estimators.local.engine.objects import S3Object, S3Uri, list_objects

BLOCK = 1000
KEPT = 8 * BLOCK
KERNEL = 128  # bytes the kernel asks for at a time, in proportion
DATA = random.Random(0).randbytes(10 * BLOCK + 37)


class Counting:
    """A client that notes the ranges, and that breaks off as often as it is told to."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._lock = threading.Lock()
        self.ranges: list[tuple[int, int]] = []
        self.breaks = 0
        self.refused: set[int] = set()
        self.changes: Callable[[dict[str, Any]], Any] = lambda _: None

    def get_object(self, **request: Any) -> Any:
        start, _, end = request["Range"].removeprefix("bytes=").partition("-")
        if int(start) in self.refused:
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "reduce your rate"}}, "GetObject")
        self.changes(request)
        response = self._s3.get_object(**request)
        with self._lock:
            self.ranges.append((int(start), int(end) + 1))
            if self.breaks:
                self.breaks -= 1
                response["Body"]._content_length = len(DATA) + 1
        return response


@pytest.fixture
def counting(s3: Any) -> Counting:
    return Counting(s3)


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def transfers(counting: Counting, failures: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    monkeypatch.setattr(reading, "BLOCK", BLOCK)
    monkeypatch.setattr(reading, "KEPT_BYTES", KEPT)
    transfers = Reading(counting, failed=failures.append)  # type: ignore[arg-type]
    yield transfers
    transfers.close()


@pytest.fixture
def found(s3: Any, bucket: str) -> S3Object:
    key = uuid.uuid4().hex
    s3.put_object(Bucket=bucket, Key=key, Body=DATA)
    (found,) = list_objects(s3, S3Uri(bucket=bucket, key=key))
    return found


@pytest.fixture
def opened(transfers: Reading, found: S3Object) -> OpenObject:
    return transfers.open(found)


def read_all(file: OpenObject) -> bytes:
    return b"".join(file.read(offset, KERNEL) for offset in range(0, len(DATA) + KERNEL, KERNEL))


def test_a_sequence_is_read_once_in_large_pieces(opened: OpenObject, counting: Counting) -> None:
    assert read_all(opened) == DATA
    edges = [*range(0, len(DATA), BLOCK), len(DATA)]
    assert sorted(counting.ranges) == list(itertools.pairwise(edges))


def test_the_first_block_alone_is_read_for_who_reads_no_more(opened: OpenObject, counting: Counting) -> None:
    assert opened.read(0, 10) == DATA[:10]
    assert counting.ranges == [(0, BLOCK)]


def test_who_jumps_about_gets_what_was_asked_for_and_no_more(opened: OpenObject, counting: Counting) -> None:
    for offset in (9000, 3000, 6000, 1500, 10_030):
        assert opened.read(offset, KERNEL) == DATA[offset : offset + KERNEL]
    assert counting.ranges == [(offset, min(offset + KERNEL, len(DATA))) for offset in (9000, 3000, 6000, 1500, 10_030)]


def test_a_sequence_may_begin_anywhere(opened: OpenObject, counting: Counting) -> None:
    read = b"".join(opened.read(offset, KERNEL) for offset in range(5500, len(DATA), KERNEL))
    assert read == DATA[5500:]
    assert len(counting.ranges) <= 1 + 6


def test_what_the_kernel_has_in_its_cache_does_not_interrupt_a_sequence(opened: OpenObject, counting: Counting) -> None:
    for offset in range(2500, len(DATA), 5 * KERNEL):  # what lies before, and four of five pieces, are there already
        assert opened.read(offset, KERNEL) == DATA[offset : offset + KERNEL]
    assert len(counting.ranges) <= 1 + 8  # the last may be on its way


def test_two_sequences_in_one_file_do_not_interrupt_each_other(opened: OpenObject, counting: Counting) -> None:
    for offset in range(0, 5 * BLOCK, KERNEL):
        for begin in (offset, 5 * BLOCK + offset):
            assert opened.read(begin, KERNEL) == DATA[begin : begin + KERNEL]
    assert len(counting.ranges) <= 1 + 11 + reading.AHEAD  # the first goes on where the second began


def test_what_lies_before_what_was_read_is_read_once_too(opened: OpenObject, counting: Counting) -> None:
    for begin, end in ((6000, len(DATA)), (0, 5000)):
        for offset in range(begin, end, KERNEL):
            assert opened.read(offset, KERNEL) == DATA[offset : offset + KERNEL]
    assert len(counting.ranges) <= 1 + 11 + reading.AHEAD  # the low end reads ahead into what may be gone


def test_who_jumps_about_for_long_fetches_little_more_than_is_read(
    transfers: Reading, s3: Any, bucket: str, counting: Counting
) -> None:
    data, chosen = random.Random(2).randbytes(50 * BLOCK), random.Random(3)
    s3.put_object(Bucket=bucket, Key="large", Body=data)
    (large,) = list_objects(s3, S3Uri(bucket=bucket, key="large"))
    file, reads = transfers.open(large), 300
    for offset in (chosen.randrange(len(data) - KERNEL) for _ in range(reads)):
        assert file.read(offset, KERNEL) == data[offset : offset + KERNEL]
    assert sum(end - start for start, end in counting.ranges) < 2 * reads * KERNEL


def test_memory_has_a_bound_however_many_files_are_open(transfers: Reading, found: S3Object) -> None:
    files = [transfers.open(found) for _ in range(10)]
    for file in files:
        for offset in range(0, len(DATA), KERNEL):
            file.read(offset, KERNEL)
            assert transfers.blocks.size <= KEPT
    assert transfers.blocks.size > KEPT - BLOCK  # and it is made use of


def test_files_read_in_turns_do_not_take_each_others_blocks(
    transfers: Reading, found: S3Object, counting: Counting
) -> None:
    files = [transfers.open(found) for _ in range(8)]  # three blocks each would be too many
    step = BLOCK // 8
    for offset in range(0, len(DATA), step):
        for file in files:
            assert file.read(offset, step) == DATA[offset : offset + step]
    assert len(counting.ranges) == len(files) * 11


def test_a_closed_file_holds_nothing(transfers: Reading, opened: OpenObject) -> None:
    read_all(opened)
    opened.close()
    assert transfers.blocks.size == 0


def test_beyond_the_end_there_is_nothing(opened: OpenObject, counting: Counting) -> None:
    assert opened.read(len(DATA), KERNEL) == opened.read(len(DATA) + 500, KERNEL) == b""
    assert counting.ranges == []


def test_reads_at_one_time_agree(opened: OpenObject) -> None:
    offsets = list(range(0, len(DATA), KERNEL))
    random.Random(1).shuffle(offsets)
    found: dict[int, bytes] = {}

    def read(share: list[int]) -> None:
        for offset in share:
            found[offset] = opened.read(offset, KERNEL)

    threads = [threading.Thread(target=read, args=(offsets[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(found[offset] for offset in sorted(found)) == DATA


def test_a_broken_connection_is_made_again(opened: OpenObject, counting: Counting, failures: list[str]) -> None:
    counting.breaks = 3
    assert read_all(opened) == DATA
    assert len(counting.ranges) == 11 + 3
    assert failures == []


def test_what_breaks_too_often_is_an_error_that_the_next_read_does_not_inherit(
    opened: OpenObject, counting: Counting, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet: Callable[[float], bool] = lambda _: False  # noqa: E731
    monkeypatch.setattr(opened._reading._closing, "wait", quiet)
    counting.breaks = 5
    with pytest.raises(FailedJobError):
        opened.read(0, KERNEL)
    assert len(failures) == 1
    assert opened.read(0, KERNEL) == DATA[:KERNEL]


def test_a_block_that_could_not_be_read_ahead_is_asked_for_again_when_it_is_wanted(
    opened: OpenObject, counting: Counting, failures: list[str]
) -> None:
    opened.read(0, KERNEL)
    counting.refused = {2 * BLOCK}
    for offset in range(KERNEL, BLOCK, KERNEL):
        opened.read(offset, KERNEL)
    deadline = time.monotonic() + 10
    while not failures:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for offset in range(BLOCK, 2 * BLOCK, BLOCK // 8):
        opened.read(offset, BLOCK // 8)
        time.sleep(0.01)  # enough to fail again
    counting.refused = set()
    assert opened.read(2 * BLOCK, KERNEL) == DATA[2 * BLOCK : 2 * BLOCK + KERNEL]
    assert len(failures) == 1  # not once for each of the reads before it


def test_a_read_that_fails_takes_nothing_from_another(opened: OpenObject, counting: Counting) -> None:
    counting.refused = {5 * BLOCK}
    for offset in range(0, 4 * BLOCK, KERNEL):
        opened.read(offset, KERNEL)
    with pytest.raises(FailedJobError):
        opened.read(4 * BLOCK, BLOCK + KERNEL)
    assert opened.read(4 * BLOCK, BLOCK) == DATA[4 * BLOCK : 5 * BLOCK]
    starts = [start for start, _ in counting.ranges]
    assert starts.count(4 * BLOCK) == 1


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda request: request.pop("Range"), len(DATA)),
        (lambda request: request.update(Range="bytes=4000-4011"), 12),
    ],
    ids=["a server that ignores ranges", "a server that sends less"],
)
def test_what_is_not_the_range_that_was_asked_for_is_an_error(
    opened: OpenObject, counting: Counting, change: Callable[[dict[str, Any]], Any], came: int
) -> None:
    counting.changes = change
    with pytest.raises(FailedJobError, match=f"asked for the {KERNEL} bytes from 4000 on and sent {came}"):
        opened.read(4000, KERNEL)
