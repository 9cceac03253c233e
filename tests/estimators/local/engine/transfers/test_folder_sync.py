"""Checkpoint directories and S3 stay in step, both ways."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.transfers.folder_sync import CheckpointSync, SyncedFolder
from estimators.local.engine.transfers.objects import S3Uri
from smddp.checkpoint.stores.owner_record import OWNER_NAME

FilesIn = Callable[[str, str], dict[str, bytes]]


class CountingS3:
    """An S3 client that remembers what was changed through it."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self.changes: list[str] = []

    def upload_file(self, path: str, bucket: str, key: str) -> None:
        self.changes.append(f"put {key.rpartition('/')[2]}")
        self._s3.upload_file(path, bucket, key)

    def delete_object(self, *, Bucket: str, Key: str) -> None:  # noqa: N803
        self.changes.append(f"delete {Key.rpartition('/')[2]}")
        self._s3.delete_object(Bucket=Bucket, Key=Key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)


class Sync:
    """Two hosts, and a prefix."""

    def __init__(self, s3: Any, bucket: str, tmp_path: Path) -> None:
        self.s3 = CountingS3(s3)
        self.one, self.two = tmp_path / "one", tmp_path / "two"
        for directory in (self.one, self.two):
            directory.mkdir()
        self.uri = S3Uri(bucket=bucket, key="run/")
        self._snapshot = tmp_path / "snapshot"
        self.sync = self.new()

    def new(self, seconds: float = 0.02) -> CheckpointSync:
        trees = {"algo-1": HostTree(self.one), "algo-2": HostTree(self.two)}
        here = PurePath()
        folder = SyncedFolder(what="Checkpoint", uri=self.uri, path=here)
        return CheckpointSync(self.s3, folder, trees, snapshot=self._snapshot, seconds=seconds)  # type: ignore[arg-type]

    def put(self, name: str, content: str = "old") -> None:
        self.s3.put_object(Bucket=self.uri.bucket, Key=self.uri.key + name, Body=content.encode())

    def download(self) -> None:
        self.sync.download(cancelled=lambda: False)


@pytest.fixture
def sync(s3: Any, bucket: str, tmp_path: Path) -> Sync:
    return Sync(s3, bucket, tmp_path)


@pytest.fixture
def remote(sync: Sync, files_in: FilesIn) -> Callable[[], dict[str, bytes]]:
    return lambda: files_in(sync.uri.bucket, sync.uri.key)


@pytest.fixture
def running(sync: Sync) -> Iterator[Sync]:
    sync.download()
    sync.sync.start()
    yield sync
    sync.sync.abandon()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def aged(path: Path, content: str = "new") -> None:
    """Write a file as if it had been a while ago: its modification time says all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    past = time.time_ns() - 1_000_000_000
    os.utime(path, ns=(past, past))


def test_every_host_starts_with_all_of_the_prefix(sync: Sync) -> None:
    sync.put("a")
    sync.put("step-1/weights")
    sync.download()
    for directory in (sync.one, sync.two):
        assert (directory / "a").read_text() == "old"
        assert (directory / "step-1" / "weights").read_text() == "old"


def test_what_begins_like_the_prefix_is_not_of_it(sync: Sync) -> None:
    sync.s3.put_object(Bucket=sync.uri.bucket, Key="run-2/x", Body=b"")
    sync.download()
    assert list(sync.one.iterdir()) == []


def test_keys_that_leave_the_directory_are_left_out(sync: Sync, caplog: pytest.LogCaptureFixture) -> None:
    sync.put("../escape")
    sync.put("inside")
    sync.download()
    assert [path.name for path in sync.one.iterdir()] == ["inside"]
    assert not (sync.one.parent / "escape").exists()
    assert "is left out" in caplog.text


def test_what_was_downloaded_is_not_uploaded_again(sync: Sync) -> None:
    sync.put("a")
    sync.download()
    sync.sync.finish()
    assert sync.s3.changes == []


def test_new_files_go_up_while_the_job_runs(running: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    (running.one / "step-1").mkdir()
    (running.one / "step-1" / "weights").write_text("new")
    until(lambda: remote() == {"step-1/weights": b"new"})


def test_changed_files_go_up_again(running: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    (running.one / "last").write_text("1")
    until(lambda: remote() == {"last": b"1"})
    (running.one / "last").write_text("2")
    until(lambda: remote() == {"last": b"2"})


def test_deletes_propagate_though_other_hosts_have_a_copy(sync: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    sync.put("old")
    sync.download()
    (sync.one / "old").unlink()
    sync.sync.finish()
    assert remote() == {}
    assert (sync.two / "old").exists()


def test_a_file_that_does_not_change_goes_up_once(sync: Sync) -> None:
    sync.download()
    aged(sync.one / "a")
    sync.sync.finish()
    sync.sync.finish()
    assert sync.s3.changes == ["put a"]


def test_a_file_written_a_moment_ago_is_looked_at_again(sync: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    path = sync.one / "a"
    path.write_text("1")
    written = time.time_ns() + 60 * 10**9  # a moment ago, however long this test is halted
    os.utime(path, ns=(written, written))
    sync.sync.finish()
    path.write_text("2")
    os.utime(path, ns=(written, written))  # the clock's tick was too coarse to tell
    sync.sync.finish()
    assert remote() == {"a": b"2"}


def test_files_go_up_in_the_order_they_were_written(sync: Sync) -> None:
    for number, name in enumerate(["weights", "state", "manifest"]):
        aged(sync.one / "step" / name)
        os.utime(sync.one / "step" / name, ns=(number, number))
    sync.sync.finish()
    assert sync.s3.changes == ["put weights", "put state", "put manifest"]


def test_the_new_is_up_before_the_old_is_deleted(sync: Sync) -> None:
    aged(sync.one / "step-1")
    sync.sync.finish()
    (sync.one / "step-1").unlink()
    aged(sync.one / "step-2")
    sync.sync.finish()
    assert sync.s3.changes == ["put step-1", "put step-2", "delete step-1"]


def test_hosts_share_the_prefix_and_do_not_delete_what_another_wrote(
    sync: Sync, remote: Callable[[], dict[str, bytes]]
) -> None:
    aged(sync.one / "shared", "from one")
    aged(sync.two / "own", "from two")
    sync.sync.finish()
    (sync.one / "shared").unlink()
    aged(sync.two / "shared", "from two")
    sync.sync.finish()
    assert remote() == {"shared": b"from two", "own": b"from two"}


def test_the_platforms_own_transient_files_stay_here(sync: Sync) -> None:
    aged(sync.one / "a.sagemaker-uploading")
    sync.sync.finish()
    assert sync.s3.changes == []


@pytest.mark.parametrize(("name", "progressed"), [(OWNER_NAME, False), ("step-000000000001/manifest.json", True)])
def test_who_saves_there_is_copied_and_is_no_progress(
    sync: Sync, remote: Callable[[], dict[str, bytes]], name: str, progressed: bool
) -> None:
    (sync.one / name).parent.mkdir(exist_ok=True)
    (sync.one / name).write_text("new")
    sync.sync.finish()
    assert list(remote()) == [name]
    assert sync.sync.progressed is progressed


def test_dangling_links_and_pipes_are_passed_over(sync: Sync) -> None:
    (sync.one / "link").symlink_to("nowhere")
    os.mkfifo(sync.one / "pipe")
    aged(sync.one / "file")
    sync.sync.finish()
    assert sync.s3.changes == ["put file"]


def test_the_last_state_is_up_when_it_finishes(running: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    for number in range(30):
        (running.one / "last").write_text(str(number))
    running.sync.finish()
    assert remote() == {"last": b"29"}


def test_a_hiccup_is_survived(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    original, failures = sync.s3.upload_file, iter([OSError("a hiccup")])

    def upload(*arguments: str) -> None:
        for failure in failures:
            raise failure
        original(*arguments)

    monkeypatch.setattr(sync.s3, "upload_file", upload)
    sync.sync.start()
    (sync.one / "a").write_text("new")
    until(lambda: remote() == {"a": b"new"})
    sync.sync.abandon()
    assert "a could not be copied: ClientError: Checkpoint upload failed" in caplog.text


def test_a_file_closed_to_this_user_holds_up_no_other_and_is_copied_when_the_hosts_have_ended(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    original, closed = shutil.copyfile, [sync.one / "a-closed"]

    def copy(source: Path, target: Path) -> None:
        if source.readlink() in closed:  # root, who may run this, is stopped by no mode
            raise PermissionError(13, "Permission denied", str(source))
        original(source, target)

    put = sync.s3.upload_file

    def upload(path: str, bucket: str, key: str) -> None:
        if Path(path).is_symlink() and Path(path).readlink() in closed:
            raise PermissionError(13, "Permission denied", path)
        put(path, bucket, key)

    monkeypatch.setattr(shutil, "copyfile", copy)
    monkeypatch.setattr(sync.s3, "upload_file", upload)
    for name in ("a-closed", "b-open"):
        aged(sync.one / name, name)
    sync.sync.start()
    until(lambda: remote() == {"b-open": b"b-open"})
    (sync.one / "c-later").write_text("later")
    until(lambda: "c-later" in remote())
    assert caplog.text.count("a-closed is not readable for this user yet") == 1
    with pytest.raises(FailedJobError, match=r"Checkpoint upload failed: .*Permission denied"):
        sync.sync.finish()
    closed.clear()
    sync.sync.finish()
    assert sorted(remote()) == ["a-closed", "b-open", "c-later"]


def test_nothing_is_deleted_because_a_directory_can_not_be_read(
    sync: Sync, remote: Callable[[], dict[str, bytes]]
) -> None:
    sync.download()
    aged(sync.one / "kept")
    sync.sync._synchronise()
    sync.one.rename(sync.one.with_name("moved"))
    sync.one.touch()  # a file in the directory's place
    with pytest.raises(FailedJobError, match="Checkpoint upload failed"):
        sync.sync.finish()
    assert remote() == {"kept": b"new"}


def test_a_bucket_that_is_gone_fails_with_its_name(sync: Sync) -> None:
    sync.uri = S3Uri(bucket="no-such-bucket-anywhere", key="run")
    with pytest.raises(FailedJobError, match="Checkpoint download failed: s3://no-such-bucket-anywhere/run"):
        sync.new().download(cancelled=lambda: False)
    aged(sync.one / "a")
    with pytest.raises(FailedJobError, match=r"ClientError: Checkpoint upload failed: .*NoSuchBucket"):
        sync.new().finish()


NAMES_OF_NO_KEY = (b"not-utf-8-\xff", b"lone-surrogate-\xed\xa0\x80", b"/".join([b"d" * 250] * 5))


def write(root: Path, name: bytes) -> None:
    path = root / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("odd")


def test_a_name_that_no_key_can_have_holds_up_no_other_and_is_said_once(
    sync: Sync, remote: Callable[[], dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    aged(sync.one / "before")
    sync.download()
    for name in NAMES_OF_NO_KEY:
        write(sync.one, name)
    sync.sync.start()
    aged(sync.one / "new")
    (sync.one / "before").unlink()
    until(lambda: set(remote()) == {"new"})
    aged(sync.one / "last")
    with pytest.raises(FailedJobError, match=r"Checkpoint upload failed: .*; and 2 more files could not be copied"):
        sync.sync.finish()
    assert set(remote()) == {"new", "last"}
    told = [message for message in caplog.messages if "could not be copied: " in message]
    assert len(told) == len(NAMES_OF_NO_KEY)
    assert all(message.isprintable() for message in told)
    assert sum("the name is not UTF-8" in message for message in told) == 2
    assert max(map(len, told)) < 1000
    assert sum(f"the key has {len('run/') + 1254:,} bytes, and S3 takes 1,024" in message for message in told) == 1


def test_a_file_that_could_not_be_copied_and_is_gone_is_no_failure(sync: Sync) -> None:
    write(sync.one, NAMES_OF_NO_KEY[0])
    with pytest.raises(FailedJobError):
        sync.sync.finish()
    for path in sync.one.iterdir():
        path.unlink()
    sync.sync.finish()


def test_names_of_control_characters_are_keys(sync: Sync, remote: Callable[[], dict[str, bytes]]) -> None:
    for name in ("tab\t", "bell\x07", "delete\x7f", "return\r"):
        aged(sync.one / name)
    sync.sync.finish()
    assert set(remote()) == {"tab\t", "bell\x07", "delete\x7f", "return\r"}
    sync.new().download(cancelled=lambda: False)
    assert (sync.two / "bell\x07").read_text() == "new"


class Refusing:
    """S3's answer to the upload of some keys."""

    def __init__(self, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
        self._upload = sync.s3.upload_file
        self.keys: set[str] = set()
        self.tried: list[str] = []
        monkeypatch.setattr(sync.s3, "upload_file", self)

    def __call__(self, path: str, bucket: str, key: str) -> None:
        self.tried.append(key)
        if not self.keys or key in self.keys:
            raise S3UploadFailedError(f"Failed to upload to {key}: An error occurred (InternalError)")
        self._upload(path, bucket, key)


def test_what_s3_refuses_again_and_again_holds_up_no_other_and_nothing_old_is_deleted_meanwhile(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync.put("old")
    sync.download()
    refusing = Refusing(sync, monkeypatch)
    refusing.keys = {f"run/{number}" for number in range(5)}
    for number in range(7):
        aged(sync.one / str(number))
    (sync.one / "old").unlink()
    sync.sync.start()
    until(lambda: set(remote()) == {"5", "6", "old"})
    refusing.keys = {"nothing more"}
    sync.sync.finish()
    assert set(remote()) == {str(number) for number in range(7)}


def test_an_s3_that_fails_is_not_asked_for_every_file(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(sync, monkeypatch)
    for number in range(100):
        aged(sync.one / str(number))
    with pytest.raises(FailedJobError, match="InternalError"):
        sync.sync.finish()
    assert len(refusing.tried) == 3


def test_an_error_that_nobody_thought_of_holds_up_no_other_file(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = sync.s3.upload_file

    def odd(path: str, bucket: str, key: str) -> None:
        if key == "run/a":
            raise RuntimeError("odd")
        upload(path, bucket, key)

    monkeypatch.setattr(sync.s3, "upload_file", odd)
    for name in ("a", "b"):
        aged(sync.one / name)
    with pytest.raises(FailedJobError, match="InternalServerError: RuntimeError"):
        sync.sync.finish()
    assert set(remote()) == {"b"}


def test_the_thread_outlives_any_error(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, scan = iter([RecursionError(), ValueError()]), HostTree.entries

    def entries(self: HostTree, folder: PurePath, **options: Any) -> Any:
        for error in scans:
            raise error
        return scan(self, folder, **options)

    monkeypatch.setattr(HostTree, "entries", entries)
    aged(sync.one / "a")
    sync.sync.start()
    until(lambda: set(remote()) == {"a"})
    sync.sync.abandon()


def test_who_ends_the_copying_waits_for_one_file_at_most(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    uploading, tried = threading.Event(), []

    def slow(_path: str, _bucket: str, key: str) -> None:
        tried.append(key)
        uploading.set()
        time.sleep(0.01)

    monkeypatch.setattr(sync.s3, "upload_file", slow)
    for number in range(100):
        aged(sync.one / str(number))
    sync.sync.start()
    assert uploading.wait(60)
    sync.sync.abandon()
    assert len(tried) < 100


def test_the_last_state_needs_no_room_on_the_disk(
    sync: Sync, remote: Callable[[], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    aged(sync.one / "a")
    sync.sync.finish()
    assert remote() == {"a": b"new"}


@pytest.mark.parametrize(
    ("seconds", "scanned", "took", "pause"),
    [
        (0.1, 0.001, 0.002, 0.1),
        (0.1, 0.05, 0.06, 0.5),
        (0.1, 0.001, 0.3, 0.3),
        (0.1, 0.001, 30.0, 1.0),
        (0.1, 2.0, 2.0, 1.0),
        (60.0, 0.05, 0.3, 60.0),
    ],
)
def test_passes_follow_soon_and_leave_most_of_the_time_to_others(
    sync: Sync, seconds: float, scanned: float, took: float, pause: float
) -> None:
    assert sync.new(seconds).pause_after(scanned, took) == pytest.approx(pause)


def test_a_pass_that_fails_is_not_repeated_at_once(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a storage that refuses all would fill the platform's log with warnings."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no")

    pauses: list[float] = []
    one = sync.new(0.01)
    monkeypatch.setattr(one, "_synchronise", refuse)
    monkeypatch.setattr(one._finished, "wait", lambda seconds: (pauses.append(seconds), len(pauses) > 2)[1])
    one._run()
    assert pauses == [0.01, 1.0, 1.0]
