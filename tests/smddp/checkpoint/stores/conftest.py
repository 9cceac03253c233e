"""A real S3 server a session, a bucket a test, and a proxy that lets requests fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from smddp.checkpoint.stores.s3 import S3Store
from smddp.storage.s3_bucket import connect
from tests.torture.fault_proxy import FaultProxy
from tests.torture.s3_server import Server, s3_server

PART_SIZE = 5 * 2**20
"""Bytes: the least that S3 takes."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3(server: Server) -> Any:
    """A client to look at what is there."""
    return server.client()


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"bucket-{uuid4().hex}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture
def environ(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boto3 finds the server by the environment alone."""
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(bucket: str, environ: None) -> S3Store:
    return S3Store(f"s3://{bucket}/runs/7", part_size=PART_SIZE)


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.endpoint_url).running() as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy, bucket: str, environ: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., S3Store]:
    """Make a store at the same place that goes through the proxy, where a request waits a second for its answer."""

    def make(**options: Any) -> S3Store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint_url)
        chosen = {"patience": 30.0, **options}
        return S3Store(f"s3://{bucket}/runs/7", connect(timeout=1.0), part_size=PART_SIZE, **chosen)

    return make
