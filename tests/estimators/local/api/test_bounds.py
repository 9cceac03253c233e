"""What clients cost the real server that prove nothing: neither much memory, nor its answers to others.

Of S3 it says so in memory, where the API answers, and on disk, behind the gateway to SeaweedFS.
"""

from __future__ import annotations

import hashlib
import resource
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from estimators.local import LocalSageMaker

MEMORY = 48 << 20
"""What the server may grow by, at most: threads, and what they read at a time."""


THE_API = pytest.mark.parametrize("platform", ["memory"], indirect=True)


@pytest.fixture(scope="module", params=["memory", pytest.param("disk", marks=pytest.mark.seaweedfs)])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSageMaker]:
    """A server in a process that nothing else has a part in, started with the usual limit of 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    with LocalSageMaker(tmp_path_factory.mktemp("storage"), storage=request.param) as platform:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # its clients have more
        yield platform
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def peak(platform: LocalSageMaker) -> int:
    """The most memory that the server ever had, in bytes."""
    for line in Path(f"/proc/{platform.server_pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def url(platform: LocalSageMaker) -> str:
    """Where S3 answers; in memory, the API does."""
    return platform.environment.get("AWS_ENDPOINT_URL_S3", platform.endpoint_url)


def connect(platform: LocalSageMaker) -> socket.socket:
    host, _, port = url(platform).removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(platform: LocalSageMaker, method: str, path: str, **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    host = url(platform).removeprefix("http://")
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


def signed(platform: LocalSageMaker, method: str, path: str, service: str, secret: str, **headers: str) -> bytes:
    """The head of a request with the right access key."""
    keys = platform.boto_session.get_credentials()
    request = AWSRequest(method=method, url=url(platform) + path, data=b"a", headers=headers)
    if service == "s3":
        request.context["payload_signing_enabled"] = True
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(Credentials(keys.access_key, secret), service, "us-east-1").add_auth(request)
    sent = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
    return head(platform, method, path, **sent)


def status(platform: LocalSageMaker, start: bytes, body: Iterable[bytes] = ()) -> int:
    """Send a request until the server has had enough; its status, or 0 if it hung up."""
    with closing(connect(platform)) as client:
        with suppress(ConnectionError):
            client.sendall(start)
            for piece in body:
                client.sendall(piece)
        return status_of(client)


def status_of(client: socket.socket) -> int:
    """The status of the answer that comes; 0 if the server hung up."""
    try:
        return int(client.recv(12).split()[1])
    except (ConnectionError, IndexError):
        return 0


def endless(total: int) -> Iterator[bytes]:
    piece = bytes(1 << 20)
    for _ in range(total >> 20):
        yield piece


def chunks(total: int) -> Iterator[bytes]:
    for piece in endless(total):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


def test_a_body_without_a_key_costs_no_memory(platform: LocalSageMaker) -> None:
    """Not even while it is still being sent, by many."""
    before = peak(platform)
    start = head(platform, "PUT", "/bucket/key", Content_Length=str(1 << 30))
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(platform)) for _ in range(24)]
        for client in clients:
            with suppress(ConnectionError):  # the gateway does not wait for the end of the body
                client.sendall(start + bytes(9 << 20))
        assert {status_of(client) for client in clients} <= {403, 0}
        # The server reads on while this one waits for its turn.
        platform.boto_session.client("sagemaker").list_training_jobs()
    assert peak(platform) - before < MEMORY


def test_a_body_with_a_wrong_secret_is_not_read_into_memory(platform: LocalSageMaker) -> None:
    """Its length is bounded by AWS's own limit, and the hash in its headers is checked first."""
    before = peak(platform)
    length = 64 << 20
    start = signed(platform, "PUT", "/bucket/key", "s3", "guess")[:-2] + b"Content-Length: %d\r\n\r\n" % length
    assert status(platform, start, endless(length)) == 403
    assert peak(platform) - before < MEMORY


@pytest.mark.slow
def test_a_body_that_is_not_the_signed_one_lies_on_disk_meanwhile(platform: LocalSageMaker) -> None:
    before = peak(platform)
    secret = platform.boto_session.get_credentials().secret_key
    length = 200 << 20
    path = f"/{platform.default_bucket}/not-signed"
    start = signed(platform, "PUT", path, "s3", secret)[:-2] + b"Content-Length: %d\r\n\r\n" % length
    assert status(platform, start, endless(length)) == 403
    assert peak(platform) - before < MEMORY
    objects = platform.boto_session.client("s3").list_objects_v2(Bucket=platform.default_bucket, Prefix="not-signed")
    assert "Contents" not in objects


@THE_API
@pytest.mark.parametrize(
    ("service", "length", "expected"),
    [("sagemaker", 9 << 20, 413), ("s3", (5 << 30) + 1, 413), ("s3", -1, 400)],
)
def test_a_body_beyond_the_limit_is_refused_unread(
    platform: LocalSageMaker, service: str, length: int, expected: int
) -> None:
    secret = platform.boto_session.get_credentials().secret_key
    start = signed(platform, "PUT", "/bucket/key", service, secret)[:-2] + b"Content-Length: %d\r\n\r\n" % length
    assert status(platform, start) == expected


@THE_API
def test_an_endless_body_in_chunks_ends_at_the_limit(platform: LocalSageMaker) -> None:
    before = peak(platform)
    start = signed(platform, "POST", "/", "sagemaker", "guess", **{"X-Amz-Target": "SageMaker.ListTrainingJobs"})
    start = start[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(platform, start, chunks(64 << 20)) == 413
    assert peak(platform) - before < MEMORY


@pytest.mark.parametrize(("length", "sent"), [(10, 4), (10, 0), (3 << 20, 1 << 19), (3 << 20, 2 << 20)])
def test_an_upload_that_is_cut_off_replaces_no_object(platform: LocalSageMaker, length: int, sent: int) -> None:
    """Not even where the signature does not cover the body."""
    s3 = platform.boto_session.client("s3", config=Config(signature_version="s3v4"))
    place = {"Bucket": platform.default_bucket, "Key": "cut-off"}
    s3.put_object(**place, Body=b"kept")
    path = s3.generate_presigned_url("put_object", place).removeprefix(url(platform))
    with closing(connect(platform)) as client:
        client.sendall(head(platform, "PUT", path, Content_Length=str(length)) + bytes(sent))
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 10):  # it ends when the server is done with it
            pass
    assert s3.get_object(**place)["Body"].read() == b"kept"


def test_a_large_object_comes_back_as_it_went(platform: LocalSageMaker) -> None:
    s3 = platform.boto_session.client("s3")
    content = b"0123456789abcdef" * (200 << 10)
    s3.put_object(Bucket=platform.default_bucket, Key="large", Body=content)
    stored = s3.get_object(Bucket=platform.default_bucket, Key="large")["Body"].read()
    assert hashlib.sha256(stored).digest() == hashlib.sha256(content).digest()


@pytest.mark.slow
def test_idle_and_slow_connections_leave_the_server_answering(platform: LocalSageMaker) -> None:
    """1,100 that say nothing, and 100 that send a body drop by drop."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < 2048:
        pytest.skip(f"1,200 clients need more open files than the {most} that ulimit -Hn allows here")
    before = peak(platform)
    # Less than the 20 seconds after which connections end by themselves. HTTP lets a server end a connection between
    # two requests, at the very moment when its client sends the next: a client asks again, as boto3 does by default.
    patience = Config(read_timeout=15, connect_timeout=15, retries={"total_max_attempts": 2})
    client = platform.boto_session.client("s3", config=patience)
    secret = platform.boto_session.get_credentials().secret_key
    start = signed(platform, "PUT", "/bucket/key", "s3", secret)[:-2] + b"Content-Length: 1000\r\n\r\n"
    done = threading.Event()
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(platform)) for _ in range(100)]

        def drip() -> None:
            while not done.wait(0.2):
                for connection in slow:
                    with suppress(OSError):
                        connection.sendall(b"x")

        for connection in slow:
            connection.sendall(start)
        thread = threading.Thread(target=drip)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        for number in range(1100):
            stack.enter_context(connect(platform))
            if number % 100 == 0:
                assert client.list_buckets()["Buckets"]
        assert client.list_buckets()["Buckets"]
    assert peak(platform) - before < MEMORY
