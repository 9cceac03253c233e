import contextlib
import fcntl
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from estimators.local.api.signature import KeyPair
from estimators.local.errors import LocalPlatformError
from estimators.local.storage import SeaweedFS

pytestmark = pytest.mark.seaweedfs


@contextlib.contextmanager
def running(data: Path, run: Path, keys: KeyPair):
    run.mkdir(exist_ok=True)
    storage = SeaweedFS(data=data, run=run, keys=keys)
    try:
        storage.launch()
        storage.wait_until_ready()
        yield storage
    finally:
        storage.close()


def client(endpoint_url: str, keys: KeyPair):
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        region_name="us-east-1",
    )


def sockets_of(endpoint_url: str) -> list[Path]:
    s3_port = int(endpoint_url.rpartition(":")[2])
    ports = range(s3_port + 10_000 - 3, s3_port + 10_000 + 2)
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock")]


KEYS = KeyPair.random()


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    directory = tmp_path_factory.mktemp("seaweedfs")
    with running(directory / "data", directory / "run", KEYS) as storage:
        s3 = client(storage.endpoint_url, KEYS)
        s3.create_bucket(Bucket="private")
        s3.put_object(Bucket="private", Key="secret", Body=b"42")
        yield storage
        sockets = sockets_of(storage.endpoint_url)
        assert sockets
    assert not [path for path in sockets if path.exists()]


def test_answers_nobody_without_its_keys(storage):
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        client(storage.endpoint_url, KeyPair.random()).list_buckets()
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client(storage.endpoint_url, KeyPair(access_key=KEYS.access_key, secret_key="guess")).list_buckets()


def test_its_components_answer_nobody_at_all(storage):
    s3_port = int(storage.endpoint_url.rpartition(":")[2])
    for port in range(s3_port - 3, s3_port + 2):  # master, volume, filer, s3, admin
        for path in ("/buckets/private/secret", "/private/secret", "/dir/assign", "/col/delete?collection=private"):
            assert status(port, path) >= 400, (port, path)
    assert client(storage.endpoint_url, KEYS).get_object(Bucket="private", Key="secret")["Body"].read() == b"42"


def test_makes_no_bucket_that_nobody_asked_for(storage):
    with pytest.raises(ClientError, match="NoSuchBucket"):
        client(storage.endpoint_url, KEYS).put_object(Bucket="never-made", Key="a", Body=b"")


def test_holds_more_buckets_than_the_disk_has_gigabytes(tmp_path):
    with running(tmp_path / "data", tmp_path / "run", KEYS) as storage:
        s3 = client(storage.endpoint_url, KEYS)
        for number in range(min(shutil.disk_usage(tmp_path).free // 2**30 + 10, 100)):
            s3.create_bucket(Bucket=f"bucket-{number}")
            s3.put_object(Bucket=f"bucket-{number}", Key="object", Body=b"42")


def test_refuses_a_second_writer_of_an_object(storage):
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client(storage.endpoint_url, KEYS).put_object(Bucket="private", Key="secret", Body=b"", IfNoneMatch="*")


def status(port: int, path: str) -> int:
    deadline = time.monotonic() + 10
    with contextlib.closing(socket.socket()) as probe:  # the last components come up after S3
        while probe.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline, f"nothing listens on port {port}"
            time.sleep(0.1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_refuses_a_directory_that_is_in_use(tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalPlatformError, match="in use by another local platform"):
            SeaweedFS(data=tmp_path, run=tmp_path, keys=KEYS).launch()


PARENT = """if True:
    import os, sys, time
    from pathlib import Path
    from estimators.local.api.signature import KeyPair
    from estimators.local.storage import SeaweedFS
    directory = Path(sys.argv[1])
    (directory / "first").mkdir()
    storage = SeaweedFS(data=directory / "data", run=directory / "first", keys=KeyPair(**eval(sys.argv[2])))
    storage.launch()
    storage.wait_until_ready()
    print(storage.endpoint_url, storage.pid, flush=True)
    time.sleep(60)
"""


def test_dies_with_a_parent_that_was_killed_and_loses_nothing(tmp_path):
    body = os.urandom(9 << 20)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), repr(asdict(KEYS))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    endpoint_url, pid = parent.stdout.readline().split()
    s3 = client(endpoint_url, KEYS)
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="some/object", Body=body)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while is_alive(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for path in sockets_of(endpoint_url):  # nobody was left to do it
        path.unlink()
    with running(tmp_path / "data", tmp_path / "second", KEYS) as storage:
        s3 = client(storage.endpoint_url, KEYS)
        assert s3.get_object(Bucket="kept", Key="some/object")["Body"].read() == body


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may still be listed, if nobody asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False
