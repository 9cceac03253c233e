"""Streams from a real S3 server: which bytes they give, what they ask for, and what they leave behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

from smddp.data.source import Blob, Source, open_source
from smddp.data.source.s3 import S3Source
from smddp.errors import DataError
from tests.smddp.data.source.conftest import MIB, stream_threads
from tests.torture.fault_proxy import FaultProxy

pytestmark = pytest.mark.seaweedfs

LARGE = random.Random(0).randbytes(5 * MIB + 345)  # six parts


@pytest.fixture
def large(s3: Any, bucket: str, prefix: str) -> str:
    s3.put_object(Bucket=bucket, Key=f"{prefix}/large.tar", Body=LARGE)
    return "large.tar"


def test_a_uri_opens_it(bucket: str, prefix: str) -> None:
    source = open_source(f"s3://{bucket}/{prefix}/")
    assert isinstance(source, S3Source)
    assert isinstance(source, Source)
    assert str(source) == f"s3://{bucket}/{prefix}"


def test_lists_what_is_data_sorted_by_name(
    source: S3Source, s3: Any, bucket: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["b.tar", "a/2.tar", "a/1.jsonl", "a/", "_SUCCESS", "c.tar.tmp", ".hidden/d.tar", "a-b.tar"]
    for name in names:
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=name.encode())
    s3.put_object(Bucket=bucket, Key=f"{prefix}base/x.tar", Body=b"of another prefix")
    with caplog.at_level("INFO"):
        assert source.list() == [Blob(name=n, size=len(n)) for n in ("a-b.tar", "a/1.jsonl", "a/2.tar", "b.tar")]
    assert f"left out 3 paths in {source}, .hidden/d.tar for one: names that begin with" in caplog.text
    assert S3Source(f"s3://{bucket}/{prefix}base").list() == [Blob(name="x.tar", size=17)]
    assert f"{prefix}/b.tar" in {blob.name for blob in S3Source(f"s3://{bucket}").list()}


@pytest.mark.slow
def test_lists_more_than_one_page(source: S3Source, s3: Any, bucket: str, prefix: str) -> None:
    names = [f"{number:04}.tar" for number in range(1003)]
    for name in names:
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=b"")
    assert [blob.name for blob in source.list()] == names


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.slow
def test_gives_the_bytes_of_the_range(source: S3Source, large: str, listed: bool) -> None:
    n = len(LARGE)
    ranges = [(0, None), (0, 0), (1, 1), (MIB - 1, 2), (7, 3 * MIB), (2 * MIB, None), (n - 1, 9), (n, None), (n + 5, 7)]
    if listed:
        source.list()
    for start, size in ranges:
        reader = source if listed else pickle.loads(pickle.dumps(source))  # which has never seen the object
        with reader.open(large, start, size) as stream:
            assert stream.read() == LARGE[start : None if size is None else start + size]
            assert stream.read(1) == b""
        assert stream_threads() == 0


@pytest.mark.parametrize("listed", [True, False])
def test_an_empty_object_is_empty(source: S3Source, s3: Any, bucket: str, prefix: str, listed: bool) -> None:
    s3.put_object(Bucket=bucket, Key=f"{prefix}/empty.tar", Body=b"")
    if listed:
        source.list()
    with source.open("empty.tar") as stream:
        assert stream.read() == b""


def test_reads_of_any_size_give_the_same_bytes(source: S3Source, large: str) -> None:
    sizes, content = random.Random(1), bytearray()
    with source.open(large) as stream:
        while piece := stream.read(sizes.choice([1, 511, 512, 1 << 17, 3 * MIB])):
            content += piece
    assert content == LARGE


@pytest.mark.slow
def test_more_streams_than_memory_and_connections_all_come_to_their_end(source: S3Source, large: str) -> None:
    streams = [source.open(large, number) for number in range(12)]
    contents = [bytearray() for _ in streams]
    for _ in range(6):
        for stream, content in zip(streams, contents, strict=True):
            content += stream.read(MIB)
    assert stream_threads() <= 4
    for number, content in enumerate(contents):
        assert content == LARGE[number:]
    for stream in streams:
        stream.close()
    assert stream_threads() == 0


def test_only_the_memory_is_fetched_ahead(
    through: Callable[..., S3Source], proxy: FaultProxy, large: str, wait_for: Callable[..., None]
) -> None:
    source = through(memory=2 * MIB, timeout=30.0)
    proxy.begin()
    with source.open(large) as stream:
        wait_for(lambda: len(proxy.requests) == 2)
        for parts in range(1, 5):
            assert len(stream.read(MIB)) == MIB
            wait_for(lambda parts=parts: len(proxy.requests) == min(parts + 2, 6))
    assert len(proxy.requests) == 6


def test_who_wants_few_bytes_asks_for_no_more(through: Callable[..., S3Source], proxy: FaultProxy, large: str) -> None:
    source = through(timeout=30.0)
    with source.open(large, 1000, 512) as stream:
        assert stream.read() == LARGE[1000:1512]
    assert len(proxy.requests) == 1


def test_a_stream_that_is_forgotten_leaves_no_thread(source: S3Source, large: str) -> None:
    assert source.open(large).read(5) == LARGE[:5]  # the fixture looks for threads


def test_a_closed_stream_is_not_read(source: S3Source, large: str) -> None:
    stream = source.open(large)
    stream.close()
    stream.close()
    with pytest.raises(ValueError, match="closed file"):
        stream.read(1)


def _read_in_child(source: S3Source, name: str, answers: Any) -> None:
    with source.open(name) as stream:
        answers.put(stream.read() == LARGE)


def test_a_source_that_was_used_goes_through_a_fork(source: S3Source, large: str) -> None:
    context = multiprocessing.get_context("fork")
    with source.open(large) as stream:  # threads and connections are there
        stream.read(10)
        answers = context.Queue()
        child = context.Process(target=_read_in_child, args=(source, large, answers))
        child.start()
        assert answers.get(timeout=60)
        child.join()
        assert stream.read() == LARGE[10:]
    assert child.exitcode == 0


def test_a_stream_does_not_outlive_a_fork(source: S3Source, large: str) -> None:
    with source.open(large) as stream:
        stream.read(1)
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                stream.read(MIB)
            except DataError as error:
                os._exit(0 if "open it where it is read" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_what_was_listed_goes_along(source: S3Source, large: str, s3: Any, bucket: str, prefix: str) -> None:
    source.list()
    copy = pickle.loads(pickle.dumps(source))
    s3.put_object(Bucket=bucket, Key=f"{prefix}/large.tar", Body=bytes(len(LARGE)))
    with copy.open(large) as stream, pytest.raises(DataError, match="was replaced while it was read"):
        stream.read(1)


@pytest.mark.parametrize("uri", ["s3://", "s3:///data", "/data", "gs://bucket/data", "bucket"])
def test_refuses_what_is_no_place_in_s3(uri: str, prefix: str) -> None:
    with pytest.raises(DataError, match="expected s3://bucket/prefix"):
        S3Source(uri)


@pytest.mark.parametrize("option", ["part_size", "connections", "memory", "timeout", "patience"])
def test_refuses_numbers_that_make_no_sense(option: str) -> None:
    with pytest.raises(DataError, match=f"{option}.* -1"):
        S3Source("s3://bucket/data", **{option: -1})
