"""A real S3 server a session, a bucket a test, and a proxy that lets requests fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from smddp.data.source.s3 import S3Source
from tests.torture.fault_proxy import FaultProxy
from tests.torture.s3_server import Server, s3_server

MIB = 2**20


def stream_threads() -> int:
    return sum(thread.name == "smddp-stream" for thread in threading.enumerate())


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(server: Server) -> Any:
    return server.client()


@pytest.fixture(scope="session")
def bucket(s3: Any) -> str:
    """One for all tests: the server takes a second for the first object of each."""
    s3.create_bucket(Bucket="bucket")
    return "bucket"


@pytest.fixture
def prefix() -> str:
    """One for each test."""
    return f"{uuid4().hex}/data"


@pytest.fixture
def environ(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boto3 finds the server by the environment alone."""
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    until = time.monotonic() + 60.0  # a stream that was forgotten, not closed, has some time
    while stream_threads() and time.monotonic() < until:
        time.sleep(0.02)
    assert stream_threads() == 0


@pytest.fixture
def source(bucket: str, prefix: str, environ: None) -> S3Source:
    return S3Source(f"s3://{bucket}/{prefix}", part_size=MIB, connections=4, memory=4 * MIB, timeout=5.0)


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.endpoint_url).running() as proxy:
        yield proxy


@pytest.fixture
def through(
    proxy: FaultProxy, bucket: str, prefix: str, environ: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., S3Source]:
    """Make a source of the same objects that goes through the proxy and loses patience soon."""

    def make(**options: Any) -> S3Source:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint_url)
        chosen = {"part_size": MIB, "connections": 4, "timeout": 1.0, "patience": 30.0, **options}
        return S3Source(f"s3://{bucket}/{prefix}", **chosen)

    return make


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so, and look once more whether it stays."""

    def wait(is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + 60.0
        while not is_so() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
        assert is_so()

    return wait
