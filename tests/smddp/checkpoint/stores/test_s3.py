"""The store on a real S3 server: what is there after each call, and who wins."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.store import AlreadyCommittedError, StoreError
from smddp.errors import CheckpointError
from tests.torture.fault_proxy import Fault, FaultProxy
from tests.torture.s3_server import Server

pytestmark = pytest.mark.seaweedfs

FIRST, SECOND = "0123456789ab-0001", "0123456789ab-0002"
STEP = "runs/7/step-000000000003"
PART_SIZE = 5 * 2**20
LARGE = random.Random(0).randbytes(12 * 2**20 + 345)  # three parts


def manifest_of(attempt: str) -> bytes:
    return json.dumps({"directory": attempt}).encode()


def save(store: S3Store, attempt: str = FIRST, *, step: int = 3, replacing: bytes | None = None) -> None:
    store.write(step, attempt, "model.safetensors", [memoryview(LARGE)[:7], memoryview(LARGE)[7:]])
    store.write(step, attempt, "state.json", [memoryview(b"{}")])
    store.write(step, attempt, "digests.json", [])
    store.commit(step, attempt, manifest_of(attempt), replacing=replacing)


def read(store: S3Store, attempt: str, name: str, offset: int, size: int) -> bytes:
    memory = bytearray(size)
    store.read_into(3, attempt, name, offset, memoryview(memory))
    return bytes(memory)


def keys(s3: Any, bucket: str, prefix: str = "") -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])]


def open_uploads(s3: Any, bucket: str) -> int:
    return len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


def begin_upload(s3: Any, bucket: str, key: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"?")


def test_a_uri_opens_it(bucket: str) -> None:
    store = open_store(f"s3://{bucket}/runs/7/")
    assert isinstance(store, S3Store)
    assert str(store) == f"s3://{bucket}/runs/7"
    assert store.path(3) == f"s3://{bucket}/{STEP}"


def test_what_was_written_is_there(store: S3Store, s3: Any, bucket: str) -> None:
    assert (store.steps(), list(store.newest_first()), store.read_manifest(3)) == ([], [], None)
    save(store)
    assert sorted(keys(s3, bucket)) == [
        f"{STEP}/{FIRST}/digests.json",
        f"{STEP}/{FIRST}/model.safetensors",
        f"{STEP}/{FIRST}/state.json",
        f"{STEP}/manifest.json",
    ]
    assert (store.steps(), list(store.newest_first()), store.attempts(3)) == ([3], [3], [FIRST])
    assert store.read_manifest(3) == manifest_of(FIRST)
    assert store.size(3, FIRST, "model.safetensors") == len(LARGE)
    assert store.size(3, FIRST, "digests.json") == 0
    assert store.size(3, FIRST, "ranks.safetensors") is None
    assert read(store, FIRST, "model.safetensors", 0, len(LARGE)) == LARGE
    assert read(store, FIRST, "model.safetensors", 5, 11 * 2**20) == LARGE[5 : 5 + 11 * 2**20]
    assert read(store, FIRST, "state.json", 1, 1) == b"}"
    assert read(store, FIRST, "digests.json", 0, 0) == b""
    assert open_uploads(s3, bucket) == 0


@pytest.mark.parametrize(
    ("name", "offset", "size", "reason"),
    [
        ("model.safetensors", 1, len(LARGE), "model.safetensors has less than"),
        ("model.safetensors", len(LARGE), 1, "model.safetensors has less than"),
        ("state.json", 0, 3, "state.json has less than 3 bytes"),
        ("ranks.safetensors", 0, 1, "ranks.safetensors is missing"),
    ],
)
def test_a_short_or_missing_file_is_the_reason(store: S3Store, name: str, offset: int, size: int, reason: str) -> None:
    save(store)
    with pytest.raises(CheckpointError, match=reason):
        read(store, FIRST, name, offset, size)


def test_a_huge_manifest_is_not_read(store: S3Store, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key=f"{STEP}/manifest.json", Body=bytes(16 * 2**20 + 1))
    with pytest.raises(CheckpointError, match="is not a file of at most"):
        store.read_manifest(3)


def test_only_what_stands_there_is_replaced(store: S3Store) -> None:
    first, second = manifest_of(FIRST), manifest_of(SECOND)
    store.commit(3, FIRST, first, replacing=None)
    store.commit(3, FIRST, first, replacing=None)  # as after a lost answer
    for replacing in (None, second + b" ", b""):
        with pytest.raises(AlreadyCommittedError, match="give each its own"):
            store.commit(3, SECOND, second, replacing=replacing)
        assert store.read_manifest(3) == first
    store.commit(3, SECOND, second, replacing=first)
    store.commit(3, SECOND, second, replacing=first)
    assert store.read_manifest(3) == second
    with pytest.raises(AlreadyCommittedError):
        store.commit(4, SECOND, second, replacing=first)
    assert store.steps() == [3]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_writer_that_came_between_is_not_overwritten(
    through: Callable[..., S3Store], proxy: FaultProxy, store: S3Store, s3: Any, bucket: str, replaces: bool
) -> None:
    ours, theirs = manifest_of(FIRST), manifest_of(SECOND)
    if replaces:
        s3.put_object(Bucket=bucket, Key=f"{STEP}/manifest.json", Body=b"old")

    def interfere(_: int) -> None:
        if proxy.requests[-1].startswith("PUT") and "manifest.json" in proxy.requests[-1]:
            s3.put_object(Bucket=bucket, Key=f"{STEP}/manifest.json", Body=theirs)

    proxy.begin(interfere)
    with pytest.raises(AlreadyCommittedError):
        through().commit(3, FIRST, ours, replacing=b"old" if replaces else None)
    assert store.read_manifest(3) == theirs


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.SILENCE, Fault.RESET])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_commit_whose_answer_was_lost_is_a_commit(
    through: Callable[..., S3Store], proxy: FaultProxy, store: S3Store, fault: Fault, replaces: bool
) -> None:
    old = manifest_of(FIRST) if replaces else None
    if old is not None:
        store.commit(3, FIRST, old, replacing=None)
    puts = []

    def choose(_: int) -> Fault | None:
        is_commit = proxy.requests[-1].startswith("PUT") and "manifest.json" in proxy.requests[-1]
        puts.extend([1] * is_commit)
        return fault if is_commit and len(puts) == 1 else None

    proxy.begin(choose)
    through().commit(3, SECOND, manifest_of(SECOND), replacing=old)
    assert store.read_manifest(3) == manifest_of(SECOND)


WRITER = """
import sys
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.store import AlreadyCommittedError
uri, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = S3Store(uri)
store.check_writable()
print("ready", flush=True)
sys.stdin.readline()
for step in range(steps):
    manifest = f'{{"directory": "{name * 12}-0001"}}'.encode()
    store.write(step, f"{name * 12}-0001", "state.json", [memoryview(name.encode() * 1000)])
    try:
        store.commit(step, f"{name * 12}-0001", manifest, replacing=None)
        print(step, flush=True)
    except AlreadyCommittedError:
        pass
"""


@pytest.mark.usefixtures("fork_python")
@pytest.mark.slow
def test_of_two_writers_one_commits_each_step(store: S3Store, server: Server, bucket: str) -> None:
    steps = 25
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store), name, str(steps)],
            env={**os.environ, **server.environ()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    }
    for writer in writers.values():
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers.values():
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = {name: [int(line) for line in writer.communicate(timeout=100)[0].split()] for name, writer in writers.items()}
    assert sorted(won["a"] + won["b"]) == list(range(steps))
    for name, steps_won in won.items():
        for step in steps_won:
            assert name * 12 in str(store.read_manifest(step))


def test_discarding_leaves_what_is_committed_and_what_is_foreign(store: S3Store, s3: Any, bucket: str) -> None:
    save(store)
    store.write(3, SECOND, "state.json", [memoryview(b"{}")])
    begin_upload(s3, bucket, f"{STEP}/{SECOND}/model.safetensors")
    s3.put_object(Bucket=bucket, Key=f"{STEP}/{SECOND}/notes.txt", Body=b"mine")
    assert store.attempts(3) == [FIRST, SECOND]
    store.discard(3, FIRST)
    assert store.attempts(3) == [FIRST, SECOND]
    store.discard(3, SECOND)
    store.discard(3, SECOND)
    store.discard(9, SECOND)
    assert store.attempts(3) == [FIRST]
    assert keys(s3, bucket, f"{STEP}/{SECOND}/") == [f"{STEP}/{SECOND}/notes.txt"]
    assert open_uploads(s3, bucket) == 0
    assert read(store, FIRST, "model.safetensors", 0, len(LARGE)) == LARGE


def test_removing_takes_the_manifest_first_and_leaves_what_is_foreign(
    through: Callable[..., S3Store], proxy: FaultProxy, store: S3Store, s3: Any, bucket: str
) -> None:
    save(store)
    s3.put_object(Bucket=bucket, Key=f"{STEP}/model.safetensors", Body=b"no checkpoint's")
    s3.put_object(Bucket=bucket, Key=f"{STEP}/notes.txt", Body=b"mine")
    begin_upload(s3, bucket, f"{STEP}/{SECOND}/model.safetensors")
    there = []
    proxy.begin(lambda number: there.append(keys(s3, bucket, STEP)))
    through().remove(3)
    first = next(later for later in there if later != there[0])
    assert set(there[0]) - set(first) == {f"{STEP}/manifest.json"}
    assert keys(s3, bucket) == [f"{STEP}/model.safetensors", f"{STEP}/notes.txt"]
    assert open_uploads(s3, bucket) == 0
    store.remove(3)
    store.remove(4)


def test_a_removed_step_is_not_listed(store: S3Store) -> None:
    save(store)
    save(store, step=4)
    store.remove(3)
    assert store.steps() == [4]


def test_orphans_are_aborted_with_the_first_commit_and_only_ours_that_are_old(
    store: S3Store, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for key in (
        f"{STEP}/{SECOND}/model.safetensors",
        f"{STEP}/notes.bin",
        "runs/7/other/model.safetensors",
        "runs/77/step-000000000003/model.safetensors",
    ):
        begin_upload(s3, bucket, key)
    store.commit(3, FIRST, manifest_of(FIRST), replacing=None)
    assert open_uploads(s3, bucket) == 4
    in_two_hours = datetime.now(timezone.utc) + timedelta(hours=2)
    monkeypatch.setattr("smddp.checkpoint.stores.s3._now", lambda: in_two_hours)
    later = S3Store(str(store))
    later.commit(4, FIRST, manifest_of(FIRST), replacing=None)
    assert open_uploads(s3, bucket) == 3
    assert f"aborted 1 unfinished upload of earlier processes in {store}" in caplog.text
    assert later.abort_orphans() == 0


def test_checking_leaves_nothing(store: S3Store, s3: Any, bucket: str) -> None:
    store.check_writable()
    assert keys(s3, bucket) == []


@pytest.mark.slow
def test_a_fork_makes_a_connection_of_its_own(store: S3Store) -> None:
    save(store)
    child = os.fork()
    if child == 0:
        try:
            ok = read(store, FIRST, "model.safetensors", 0, len(LARGE)) == LARGE
            save(store, step=4)
            os._exit(0 if ok else 2)
        finally:
            os._exit(1)
    assert read(store, FIRST, "model.safetensors", 0, len(LARGE)) == LARGE
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read_manifest(4) == manifest_of(FIRST)


def test_a_completion_that_the_server_does_not_know_any_more_was_one(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, is_done = s3.complete_multipart_upload, True

    def forget(**upload: Any) -> None:
        if is_done:
            complete(**upload)
        raise ClientError({"Error": {"Code": "NoSuchUpload"}}, "CompleteMultipartUpload")

    monkeypatch.setattr(s3, "complete_multipart_upload", forget)
    store = S3Store(f"s3://{bucket}/runs", s3, part_size=PART_SIZE)
    store.write(3, FIRST, "model.safetensors", [memoryview(LARGE)])
    assert read(store, FIRST, "model.safetensors", 0, len(LARGE)) == LARGE
    is_done = False
    with pytest.raises(StoreError, match="NoSuchUpload"):
        store.write(3, SECOND, "model.safetensors", [memoryview(LARGE)])
    assert store.size(3, SECOND, "model.safetensors") is None
    assert open_uploads(s3, bucket) == 0


def test_a_server_without_conditions_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with moto.mock_aws():
        client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        client.create_bucket(Bucket="bucket")

        def ignore(request: Any, **_: Any) -> None:
            for name in ("If-None-Match", "If-Match"):
                if name in request.headers:
                    del request.headers[name]

        client.meta.events.register("before-sign.s3.PutObject", ignore)
        store = S3Store("s3://bucket/runs", client)
        with caplog.at_level(logging.WARNING):
            store.check_writable()
            store.commit(3, FIRST, manifest_of(FIRST), replacing=None)
            store.commit(4, FIRST, manifest_of(FIRST), replacing=None)
            with pytest.raises(AlreadyCommittedError):
                store.commit(4, SECOND, manifest_of(SECOND), replacing=None)
    assert [record.message.count("ignores If-None-Match") for record in caplog.records] == [1]


def deny(s3: Any, operation: str) -> None:
    """Refuse an operation, as S3 does to a role that is not allowed it."""

    def refuse(**_: object) -> None:
        raise ClientError(
            {"Error": {"Code": "AccessDenied", "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 403}}, operation
        )

    s3.meta.events.register_first(f"before-call.s3.{operation}", refuse)


def test_a_role_that_may_not_list_uploads_prunes_all_the_same(
    server: Server, s3: Any, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited = server.client()
    deny(limited, "ListMultipartUploads")
    store = S3Store(f"s3://{bucket}/runs/7", client=limited, part_size=PART_SIZE)
    for step in (1, 2, 3):
        save(store, step=step)
    store.remove(1)
    store.remove(2)
    store.discard(3, SECOND)
    assert store.steps() == [3]
    assert len([each for each in caplog.records if "AbortIncompleteMultipartUpload" in each.message]) == 1


def test_a_role_that_may_not_list_uploads_aborts_its_own(
    server: Server, s3: Any, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited = server.client()
    deny(limited, "ListMultipartUploads")
    store = S3Store(f"s3://{bucket}/runs/7", client=limited, part_size=PART_SIZE)
    deny(limited, "CompleteMultipartUpload")
    with pytest.raises(StoreError, match="AccessDenied"):
        store.write(3, FIRST, "model.safetensors", [memoryview(LARGE)])
    assert open_uploads(s3, bucket) == 0
    assert "could not abort" not in caplog.text


def test_an_upload_that_can_not_be_aborted_now_is_said(
    server: Server, s3: Any, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited = server.client()
    deny(limited, "AbortMultipartUpload")
    deny(limited, "CompleteMultipartUpload")
    store = S3Store(f"s3://{bucket}/runs/7", client=limited, part_size=PART_SIZE)
    with pytest.raises(StoreError, match="AccessDenied"):
        store.write(3, FIRST, "model.safetensors", [memoryview(LARGE)])
    assert open_uploads(s3, bucket) == 1
    assert caplog.text.count("could not abort the multipart upload of") == 1


def test_tensors_that_somebody_laid_beside_a_manifest_stay(store: S3Store, s3: Any, bucket: str) -> None:
    adapter = f"{STEP}/lora.safetensors"
    save(store)
    s3.put_object(Bucket=bucket, Key=adapter, Body=b"?")
    store.remove(3)
    assert keys(s3, bucket) == [adapter]
    store.remove(3)  # as the next life does whose former one was killed
    assert keys(s3, bucket) == [adapter]


def test_a_checkpoint_of_format_1_is_removed_whole(store: S3Store, s3: Any, bucket: str) -> None:
    for name in ("manifest.json", "model.safetensors", "state.json", "notes.txt"):
        s3.put_object(Bucket=bucket, Key=f"{STEP}/{name}", Body=b'{"format": 1}')
    store.remove(3)
    assert keys(s3, bucket) == [f"{STEP}/notes.txt"]


@pytest.mark.seaweedfs
def test_an_object_beside_the_steps_is_replaced_and_listed(store: S3Store) -> None:
    assert store.names_beside("notes") == []
    store.write_beside("notes", "a.json", b"1")
    store.write_beside("notes", "a.json", b"two")
    store.write_beside("notes", "b.json", b"3")
    assert sorted(store.names_beside("notes")) == ["a.json", "b.json"]
    assert store.read_beside("notes", "a.json", largest=3) == b"two"
    assert store.read_beside("notes", "c.json", largest=3) is None
    with pytest.raises(CheckpointError, match=r"a\.json is not a file of at most 2 bytes"):
        store.read_beside("notes", "a.json", largest=2)
    assert store.steps() == []
