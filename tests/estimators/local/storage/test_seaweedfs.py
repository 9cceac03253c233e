import contextlib
import fcntl
import http.client
import os
import queue
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from estimators.local.api.signature import KeyPair
from estimators.local.chaos import Chaos
from estimators.local.errors import LocalPlatformError, StorageEndedError
from estimators.local.executors import supervised_process
from estimators.local.private_directory import is_locked
from estimators.local.storage import Gateway, SeaweedFS, seaweedfs, seaweedfs_process
from tests.estimators.local.processes import is_alive
from tests.estimators.local.strangers import openable

pytestmark = pytest.mark.seaweedfs
BOTH_WAYS = pytest.mark.parametrize(
    "isolated", [pytest.param(True, marks=pytest.mark.namespaces), False], ids=["isolated", "not-isolated"]
)
KEYS = KeyPair.random()


@contextlib.contextmanager
def running(directory: Path, isolated: bool = True):
    (directory / "run").mkdir()
    storage = SeaweedFS(data=directory / "data", run=directory / "run", keys=KEYS, isolated=isolated)
    try:
        storage.launch()
        storage.wait_until_ready()
        yield storage
    finally:
        storage.close()


@contextlib.contextmanager
def client(storage: SeaweedFS, keys: KeyPair = KEYS):
    gateway = Gateway(connect=storage.connect, keys=KEYS, chaos=Chaos())
    gateway.start()
    try:
        yield boto3.client(
            "s3",
            endpoint_url=gateway.endpoint_url,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            region_name="us-east-1",
        )
    finally:
        gateway.close()


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    with running(tmp_path_factory.mktemp("seaweedfs")) as storage:
        yield storage


@pytest.fixture(scope="module")
def s3(storage):
    with client(storage) as s3:
        s3.create_bucket(Bucket="private")
        s3.put_object(Bucket="private", Key="secret", Body=b"42")
        yield s3


def test_a_bucket_with_objects_is_not_deleted(s3):
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        s3.delete_bucket(Bucket="private")
    assert s3.get_object(Bucket="private", Key="secret")["Body"].read() == b"42"


@pytest.mark.parametrize("key", ["a//b", "/b", "b\\c", "directory/", ".uploads/b"])
def test_no_object_is_kept_under_another_key(s3, key):
    with pytest.raises(ClientError, match="can't be kept on disk"):
        s3.put_object(Bucket="private", Key=key, Body=b"other")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="private")["Contents"]] == ["secret"]


def test_a_prefix_is_listed_as_long_as_an_object_has_it(s3):
    def listed(prefix=""):
        page = s3.list_objects_v2(Bucket="prefixes", Prefix=prefix, Delimiter="/")
        prefixes = [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] == len(prefixes)
        return prefixes

    s3.create_bucket(Bucket="prefixes")
    keys = ["gone/deep/1", "run/a b&ü/x/1", "run/a b&ü/x/2", "run/c/3"]
    for key in keys:
        s3.put_object(Bucket="prefixes", Key=key, Body=b"x")
    assert listed() == ["gone/", "run/"]
    assert listed("run/") == ["run/a b&ü/", "run/c/"]
    s3.delete_object(Bucket="prefixes", Key="gone/deep/1")
    s3.delete_objects(Bucket="prefixes", Delete={"Objects": [{"Key": key} for key in keys[1:3]]})
    assert listed() == ["run/"]
    assert listed("run/") == ["run/c/"]


@pytest.fixture(scope="module")
def open_storage(tmp_path_factory):
    """One without namespaces, which must leave no socket."""
    with running(tmp_path_factory.mktemp("seaweedfs"), isolated=False) as storage:
        with client(storage) as s3:
            s3.create_bucket(Bucket="private")
            s3.put_object(Bucket="private", Key="secret", Body=b"42")
        sockets = storage.process.sockets_outside
        assert any(path.exists() for path in sockets)
        yield storage
    assert not [path for path in sockets if path.exists()]


def test_answers_nobody_without_its_keys(storage, s3):
    with client(storage, KeyPair.random()) as stranger, pytest.raises(ClientError, match="InvalidAccessKeyId"):
        stranger.list_buckets()
    guess = KeyPair(access_key=KEYS.access_key, secret_key="guess")
    with client(storage, guess) as stranger, pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.list_buckets()


@pytest.mark.namespaces
def test_has_a_network_and_a_place_for_sockets_of_its_own(storage, s3):
    there = Path(f"/proc/{storage.process.pid}")
    assert (there / "ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    outside = {path.name for path in Path("/tmp").glob("seaweedfs-*.sock")}
    ours = {path.name for path in (there / "root/tmp").iterdir() if path.is_socket()}
    assert ours
    assert not ours & outside


@pytest.mark.namespaces
@pytest.mark.slow
def test_where_namespaces_are_barred_it_says_so_and_goes_on_without(tmp_path):
    # The limit of a user namespace of the test's own: nothing in it may make a further one.
    run = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "sh", "-ec"),
            'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"',
            *("sh", sys.executable, "-c", ONE_OBJECT, str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.stdout == "False kept\n", run.stderr
    assert "can't have a network of its own here: unshare: " in run.stderr


ONE_OBJECT = """if True:
    import sys
    from pathlib import Path
    from tests.estimators.local.storage.test_seaweedfs import client, running
    with running(Path(sys.argv[1])) as storage, client(storage) as s3:
        s3.create_bucket(Bucket="here")
        s3.put_object(Bucket="here", Key="object", Body=b"kept")
        print(storage.process.isolated, s3.get_object(Bucket="here", Key="object")["Body"].read().decode())
"""


def test_without_namespaces_its_components_answer_nobody_over_http(open_storage):
    s3_port = int(open_storage.process.endpoint_url.rpartition(":")[2])
    for port in range(s3_port - 3, s3_port + 2):  # master, volume, filer, s3, admin
        for path in ("/buckets/private/secret", "/private/secret", "/dir/assign", "/col/delete?collection=private"):
            assert status(port, path) >= 400, (port, path)


def test_without_namespaces_its_components_talk_grpc_to_nobody_without_their_certificate(open_storage):
    s3_port = int(open_storage.process.endpoint_url.rpartition(":")[2])
    for port in range(s3_port + 10_000 - 3, s3_port + 10_000 + 2):
        await_port(port)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
            assert not answer(plain).startswith(bytes.fromhex("0000")), port  # a frame of HTTP/2
        stranger = ssl.create_default_context()
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        stranger.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
            stranger.wrap_socket(plain) as encrypted,
        ):
            encrypted.recv(1)


def answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


@pytest.mark.root
@BOTH_WAYS
@pytest.mark.slow
def test_no_other_user_connects_to_a_socket_or_opens_a_file_of_its(isolated, open_directory):
    data, run = open_directory / "data", open_directory / "run"
    run.mkdir(mode=0o700)
    storage = SeaweedFS(data=data, run=run, keys=KEYS, isolated=isolated)
    try:
        storage.launch()
        storage.wait_until_ready()
        inside = [f"/proc/{storage.process.pid}/{name}" for name in ("environ", "root/tmp", "cwd/s3.sock")]
        assert openable([*open_directory.rglob("*"), *storage.process.sockets_outside, *inside]) == []
    finally:
        storage.close()


def test_makes_no_bucket_that_nobody_asked_for(s3):
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.put_object(Bucket="never-made", Key="a", Body=b"")


@pytest.mark.slow
def test_holds_more_buckets_than_the_disk_has_gigabytes(tmp_path):
    with running(tmp_path) as storage, client(storage) as s3:
        for number in range(min(shutil.disk_usage(tmp_path).free // 2**30 + 10, 100)):
            s3.create_bucket(Bucket=f"bucket-{number}")
            s3.put_object(Bucket=f"bucket-{number}", Key="object", Body=b"42")


def test_refuses_a_second_writer_of_an_object(s3):
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket="private", Key="secret", Body=b"", IfNoneMatch="*")


@pytest.mark.slow
def test_works_in_a_directory_whose_name_is_longer_than_a_sockets_may_be(tmp_path):
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    with running(directory) as storage, client(storage) as s3:
        assert s3.list_buckets()["Buckets"] == []


@BOTH_WAYS
@pytest.mark.slow
def test_is_started_again_on_the_same_data_when_it_is_killed(isolated, tmp_path, caplog):
    with running(tmp_path, isolated) as storage, client(storage) as s3:
        storage.watch(lambda reason: None)
        s3.create_bucket(Bucket="kept")
        s3.put_object(Bucket="kept", Key="object", Body=b"42")
        killed = storage.process
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert s3.get_object(Bucket="kept", Key="object")["Body"].read() == b"42"
        assert not [path for path in killed.sockets_outside if path.exists()]
    assert "ended with exit code 137: starting it again, 1 of 3 times" in caplog.text


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_restart_that_fails_is_tried_again_and_never_without_namespaces(tmp_path, caplog, monkeypatch):
    with running(tmp_path) as storage, client(storage) as s3:
        storage.watch(lambda reason: None)
        monkeypatch.setattr(supervised_process, "SUPERVISOR", str(fails_once(tmp_path)))
        killed = storage.process
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        s3.create_bucket(Bucket="made-later")
        assert storage.process.isolated
    assert "could not be started: too busy): starting it again, 2 of 3 times" in caplog.text


def fails_once(directory: Path) -> Path:
    """A supervisor that is none when it is started for the first time, for a reason that may pass."""
    program = directory / "fails_once.py"
    program.write_text(
        f"""if True:
        import json, os, socket, sys
        try:
            os.mkdir({str(directory / "tried")!r})
        except FileExistsError:
            real = {supervised_process.SUPERVISOR!r}
            os.execv(sys.executable, [sys.executable, "-I", "-S", real, *sys.argv[1:]])
        sys.stdin.readline()
        socket.socket(fileno=int(sys.argv[1])).send(json.dumps({{"error": "too busy"}}).encode())
        """
    )
    return program


@pytest.mark.namespaces
def test_a_first_start_that_fails_is_an_error_and_not_one_without_namespaces(tmp_path, monkeypatch):
    monkeypatch.setattr(supervised_process, "SUPERVISOR", str(fails_once(tmp_path)))
    refused = pytest.raises(LocalPlatformError, match=r"SeaweedFS did not start: .* could not be started: too busy")
    with refused, running(tmp_path):
        pass


def test_is_given_up_with_the_reason_when_it_dies_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(seaweedfs, "_PAUSES", (0.0, 0.0, 0.0))
    with watched(tmp_path) as (storage, told), client(storage) as s3:
        deadline = time.monotonic() + 30
        for _ in range(4):
            killed = storage.process
            os.kill(killed.pid, signal.SIGKILL)
            while storage.process is killed and told.empty():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        reason = told.get(timeout=60)
        with pytest.raises(StorageEndedError, match="exit code 137, the last of 4 failures in a row") as error:
            storage.connect()
        assert str(error.value) == reason
        with pytest.raises(ClientError, match=r"ServiceUnavailable.*exit code 137, the last of 4 failures in a row"):
            s3.list_buckets()


def test_pauses_longer_before_each_further_restart(tmp_path, monkeypatch):
    pauses = []
    with watched(tmp_path) as (storage, told):
        monkeypatch.setattr(storage, "_start", refuse)
        monkeypatch.setattr(storage._closing, "wait", pauses.append)
        os.kill(storage.process.pid, signal.SIGKILL)
        assert "could not be started again (nobody foresaw this), the last of 4 failures" in told.get(timeout=60)
    assert len(pauses) == 3
    assert pauses == sorted(set(pauses))


def test_is_given_up_when_its_watcher_fails_itself(tmp_path, monkeypatch, caplog):
    with watched(tmp_path) as (storage, told):
        monkeypatch.setattr(storage.process, "remove_sockets", refuse)
        os.kill(storage.process.pid, signal.SIGKILL)
        assert "can't be watched any more: ValueError" in told.get(timeout=60)
        with pytest.raises(StorageEndedError, match="nobody foresaw this"):
            storage.connect()
        monkeypatch.undo()
    assert "Traceback" in caplog.text


def refuse():
    raise ValueError("nobody foresaw this")


@contextlib.contextmanager
def watched(directory: Path):
    """A storage, and the reason that it is given up with."""
    told = queue.SimpleQueue()
    with running(directory) as storage:
        storage.watch(told.put)
        yield storage, told


def status(port: int, path: str) -> int:
    await_port(port)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def await_port(port: int) -> None:
    deadline = time.monotonic() + 60
    with contextlib.closing(socket.socket()) as probe:  # the last components come up after S3
        while probe.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline, f"nothing listens on port {port}"
            time.sleep(0.1)


def test_refuses_a_directory_that_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(seaweedfs, "_RELEASE_SECONDS", 0.1)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalPlatformError, match="in use by another local platform"):
            SeaweedFS(data=tmp_path, run=tmp_path, keys=KEYS).launch()


PARENT = """if True:
    import sys, time
    from pathlib import Path
    from estimators.local.api.signature import KeyPair
    from estimators.local.chaos import Chaos
    from estimators.local.storage import Gateway, SeaweedFS, seaweedfs, seaweedfs_process
    directory, keys = Path(sys.argv[1]), KeyPair(**eval(sys.argv[2]))
    (directory / "first").mkdir()
    storage = SeaweedFS(data=directory / "data", run=directory / "first", keys=keys)
    storage.launch()
    storage.wait_until_ready()
    gateway = Gateway(connect=storage.connect, keys=keys, chaos=Chaos())
    gateway.start()
    print(gateway.endpoint_url, storage.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_dies_with_a_parent_that_was_killed_and_loses_nothing(tmp_path):
    body = os.urandom(9 << 20)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), repr(asdict(KEYS))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    endpoint_url, pid = parent.stdout.readline().split()
    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
        region_name="us-east-1",
    )
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="some/object", Body=body)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60
    while is_alive(int(pid)) or is_locked(tmp_path / "data"):  # its supervisor ends after it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with running(tmp_path) as storage, client(storage) as s3:
        assert s3.get_object(Bucket="kept", Key="some/object")["Body"].read() == body


def test_nobody_is_connected_before_the_objects_can_be_read(tmp_path, monkeypatch, caplog):
    with running(tmp_path) as storage:
        monkeypatch.setattr(seaweedfs_process, "_HAS_VOLUMES", b"said in other words")
        storage.process._has_volumes = False
        with pytest.raises(ConnectionRefusedError, match="has not found its volumes yet"):
            storage.connect()
        monkeypatch.setattr(seaweedfs_process, "_VOLUMES_SECONDS", 0.0)
        storage.connect().close()
        assert "does not say that it has found its volumes" in caplog.text


def test_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(LocalPlatformError, match=r"which keeps the objects on disk, is missing.* pip install"):
        seaweedfs_process.find_program()
