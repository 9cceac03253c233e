"""What a stream does when S3, the network or somebody who writes there do not behave."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from smddp.data.source.s3 import S3Source
from smddp.errors import DataError
from tests.smddp.data.source.conftest import MIB, stream_threads
from tests.torture.fault_proxy import Fault, FaultProxy

pytestmark = pytest.mark.seaweedfs

LARGE = random.Random(0).randbytes(5 * MIB + 345)  # six parts
OTHER = random.Random(1).randbytes(len(LARGE))
COMES_THROUGH = [fault for fault in Fault if fault is not Fault.EXPIRED]


@pytest.fixture(autouse=True)
def large(s3: Any, bucket: str, prefix: str) -> None:
    s3.put_object(Bucket=bucket, Key=f"{prefix}/large.tar", Body=LARGE)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("fault", COMES_THROUGH)
@pytest.mark.slow
def test_comes_through_a_fault(through: Callable[..., S3Source], proxy: FaultProxy, fault: Fault, number: int) -> None:
    source = through()
    proxy.begin(lambda request: fault if request in (number, number + 1) else None)
    with source.open("large.tar") as stream:
        assert stream.read() == LARGE


@pytest.mark.slow
def test_what_broke_off_is_asked_for_from_there_on(
    through: Callable[..., S3Source], proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    source = through(part_size=8 * MIB, timeout=30.0)  # a busy server is asked once
    sent: list[int] = []

    def count(number: int) -> Fault | None:
        sent.append(number)
        return Fault.TRUNCATED if number < 6 else None

    proxy.begin(count)
    with source.open("large.tar") as stream, caplog.at_level("INFO", "smddp"):
        assert stream.read() == LARGE
    # Half of what is left comes each time, and each time patience begins anew: so the pauses stay short.
    assert len(sent) == 7
    again = [record.levelname for record in caplog.records if "asking again" in record.getMessage()]
    assert again == ["INFO"] * 6  # a pause of a second would be a warning


@pytest.mark.parametrize("fault", [Fault.INTERNAL_ERROR, Fault.SLOW_DOWN, Fault.SILENCE, Fault.REFUSED, Fault.EXPIRED])
def test_a_server_that_fails_for_good_is_an_error_in_time(
    through: Callable[..., S3Source], proxy: FaultProxy, fault: Fault
) -> None:
    source = through(patience=1.0)
    proxy.begin(lambda number: fault if number >= 2 else None)
    content = bytearray()
    started = time.monotonic()
    with (
        source.open("large.tar") as stream,
        pytest.raises(DataError, match=r"could not read s3://.*/data/large.tar: .*; ") as error,
    ):
        while piece := stream.read(1000):
            content += piece
    assert time.monotonic() - started < 10.0
    assert LARGE.startswith(content)  # what came before is right
    assert ("asked again for" in str(error.value)) is (fault is not Fault.EXPIRED)
    assert stream_threads() == 0


@pytest.mark.parametrize("fault", COMES_THROUGH)
def test_a_listing_comes_through(through: Callable[..., S3Source], proxy: FaultProxy, fault: Fault) -> None:
    source = through()
    proxy.begin(lambda number: fault if number == 0 else None)
    assert [blob.name for blob in source.list()] == ["large.tar"]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("replacement", [OTHER, OTHER[: 3 * MIB], OTHER + LARGE], ids=["as large", "smaller", "larger"])
def test_an_object_that_is_replaced_is_an_error_and_no_mix(
    source: S3Source, s3: Any, bucket: str, prefix: str, listed: bool, replacement: bytes
) -> None:
    if listed:
        source.list()
    content = bytearray()
    with (
        source.open("large.tar") as stream,  # four parts are fetched ahead
        pytest.raises(DataError, match=r"/data/large.tar was replaced while .* start the epoch again"),
    ):
        content += stream.read(100)
        s3.put_object(Bucket=bucket, Key=f"{prefix}/large.tar", Body=replacement)
        while piece := stream.read(1000):
            content += piece
    assert len(content) >= 100
    assert LARGE.startswith(content)
    with pytest.raises(DataError, match="was replaced"), source.open("large.tar") as stream:
        stream.read(1)  # the next epoch does not take it for the same either
    source.list()  # but who indexes anew reads what is there
    with source.open("large.tar") as stream:
        assert stream.read() == replacement


def test_an_object_that_is_removed_is_missing(source: S3Source, s3: Any, bucket: str, prefix: str) -> None:
    source.list()
    s3.delete_object(Bucket=bucket, Key=f"{prefix}/large.tar")
    with source.open("large.tar") as stream, pytest.raises(DataError, match=r"data/large.tar is missing: bring it"):
        stream.read(1)


def test_a_bucket_that_is_not_there_is_said(environ: None) -> None:
    source = S3Source("s3://no-such-bucket/data")
    with pytest.raises(DataError, match=r"could not list s3://no-such-bucket/data: .*create the bucket"):
        source.list()
    with source.open("x.tar") as stream, pytest.raises(DataError, match="create the bucket"):
        stream.read(1)


def test_wrong_credentials_are_said(bucket: str, prefix: str, environ: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DataError, match="secret key is wrong"):
        S3Source(f"s3://{bucket}/{prefix}").list()


def test_missing_credentials_and_profiles_are_said(bucket: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with S3Source(f"s3://{bucket}/{prefix}").open("x") as stream, pytest.raises(DataError, match="give the job a role"):
        stream.read(1)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(DataError, match=r"ProfileNotFound.*check the AWS configuration"):
        S3Source(f"s3://{bucket}/{prefix}").open("x")


def test_a_bucket_of_an_impossible_name_is_said(environ: None) -> None:
    with pytest.raises(DataError, match="Invalid bucket name"):
        S3Source("s3://No_Bucket!/data").list()


def test_a_stream_closed_while_s3_is_silent_ends_with_the_timeout(
    through: Callable[..., S3Source], proxy: FaultProxy
) -> None:
    source = through(patience=600.0)
    proxy.begin(lambda _: Fault.SILENCE)
    stream = source.open("large.tar")
    time.sleep(0.2)
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 20.0
    assert stream_threads() == 0


def test_a_reader_that_waits_is_told_that_another_thread_closed_the_stream(
    through: Callable[..., S3Source], proxy: FaultProxy
) -> None:
    source = through(patience=600.0)
    proxy.begin(lambda _: Fault.SILENCE)
    raw = source.open("large.tar").raw  # type: ignore[attr-defined]
    threading.Timer(0.3, raw.close).start()
    with pytest.raises(ValueError, match="closed stream"):
        raw.read(1)


def test_a_server_that_knows_no_ranges_is_said(environ: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "x"\r\n\r\nabcde')

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.getsockname()[1]}")
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        with S3Source("s3://bucket/data").open("x") as stream, pytest.raises(DataError, match="must know Range"):
            stream.read(1)
