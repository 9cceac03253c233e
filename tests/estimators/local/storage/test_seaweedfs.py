import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from estimators.local.errors import LocalPlatformError
from estimators.local.signature import KeyPair
from estimators.local.storage import SeaweedFS

pytestmark = [
    pytest.mark.seaweedfs,
    pytest.mark.skipif(
        shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None,
        reason="weed is not installed",
    ),
]


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


def client(storage: SeaweedFS, keys: KeyPair):
    return boto3.client(
        "s3",
        endpoint_url=storage.endpoint_url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        region_name="us-east-1",
    )


def test_keeps_objects_from_one_run_to_the_next_and_leaves_no_socket(tmp_path):
    body = os.urandom(9 << 20)
    for attempt in range(2):
        keys = KeyPair.random()
        with running(tmp_path / "data", tmp_path / f"run-{attempt}", keys) as storage:
            s3 = client(storage, keys)
            if attempt == 0:
                s3.create_bucket(Bucket="kept")
                s3.put_object(Bucket="kept", Key="some/object", Body=body)
            assert s3.get_object(Bucket="kept", Key="some/object")["Body"].read() == body
            sockets = sockets_of(storage)
            assert sockets
        assert not [path for path in sockets if path.exists()]


def sockets_of(storage: SeaweedFS) -> list[Path]:
    port = int(storage.endpoint_url.rpartition(":")[2])
    return [path for path in Path("/tmp").glob("seaweedfs-s3-grpc-*.sock") if str(port + 10_000) in path.name]


def test_answers_nobody_without_its_keys(tmp_path):
    keys = KeyPair.random()
    with running(tmp_path / "data", tmp_path / "run", keys) as storage:
        s3 = client(storage, keys)
        s3.create_bucket(Bucket="private")
        s3.put_object(Bucket="private", Key="secret", Body=b"42")
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            client(storage, KeyPair.random()).list_buckets()
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            client(storage, KeyPair(access_key=keys.access_key, secret_key="guess")).list_buckets()
        with pytest.raises(ClientError, match="NoSuchBucket"):
            s3.put_object(Bucket="never-made", Key="a", Body=b"")
        s3_port = int(storage.endpoint_url.rpartition(":")[2])
        for port in range(s3_port - 3, s3_port + 2):  # master, volume, filer, s3, admin
            for path in ("/buckets/private/secret", "/private/secret", "/dir/assign", "/col/delete?collection=private"):
                assert status(port, path) >= 400, (port, path)
        assert s3.get_object(Bucket="private", Key="secret")["Body"].read() == b"42"


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
    keys = KeyPair.random()
    with (
        running(tmp_path / "data", tmp_path / "one", keys),
        pytest.raises(LocalPlatformError, match="in use by another local platform"),
        running(tmp_path / "data", tmp_path / "two", keys),
    ):
        pass


def test_ends_with_a_parent_that_was_killed(tmp_path):
    (tmp_path / "run").mkdir()
    script = f"""if True:
        import time
        from pathlib import Path
        from estimators.local.signature import KeyPair
        from estimators.local.storage import SeaweedFS
        directory = Path({str(tmp_path)!r})
        storage = SeaweedFS(data=directory / "data", run=directory / "run", keys=KeyPair.random())
        storage.launch()
        storage.wait_until_ready()
        print(storage.endpoint_url, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline().rpartition(":")[2])
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)
    raise AssertionError("SeaweedFS still answers")
