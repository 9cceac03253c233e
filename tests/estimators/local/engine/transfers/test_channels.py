"""Which object of a channel becomes which file, on which host."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import SSLError

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.instance_groups import InstanceGroup, name_hosts
from estimators.local.engine.transfers.channels import fetch_all, plan_channel, relative_path
from estimators.local.engine.transfers.objects import CancelledError
from tests.estimators.local.engine.transfers.breaking_s3 import Breaking
from tests.estimators.local.engine.whole_jobs import channel_of

GROUPS = (
    InstanceGroup(name="gpu", instance_type="ml.g5.xlarge", count=2),
    InstanceGroup(name="cpu", instance_type="ml.m5.large", count=1),
)


class Harness:
    def __init__(self, s3: Any, bucket: str, directory: Path) -> None:
        self.s3, self.bucket, self.directory = s3, bucket, directory

    def put(self, *keys: str) -> None:
        for key in keys:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=f"content of {key}".encode())

    def bring(self, key: str, **parameters: Any) -> list[list[str]]:
        """The files that each host got, of the prefix ``key``."""
        channel = channel_of(self.bucket, key, **parameters)
        hosts = name_hosts(GROUPS)
        roots = {host.name: self.directory / host.name for host in hosts}
        fetch_all(self.s3, plan_channel(self.s3, channel, hosts, roots), "it failed", cancelled=lambda: False)
        data = [root / "input" / "data" / "train" for root in roots.values()]
        return [sorted(p.relative_to(d).as_posix() for p in d.rglob("*") if p.is_file()) for d in data]


@pytest.fixture
def harness(s3: Any, bucket: str, tmp_path: Path) -> Harness:
    return Harness(s3, bucket, tmp_path / "hosts")


def test_every_host_gets_every_object(harness: Harness) -> None:
    harness.put("data/a", "data/b/c", "other/d")
    assert harness.bring("data/") == [["a", "b/c"]] * 3
    file = harness.directory / "algo-3" / "input" / "data" / "train" / "b" / "c"
    assert file.read_text() == "content of data/b/c"


@pytest.mark.parametrize(
    ("prefix", "files"),
    [
        ("data", ["a", "b/c"]),
        ("data/", ["a", "b/c"]),
        ("data/a", ["a"]),
        ("dat", ["data/a", "data/b/c"]),
        ("", ["data/a", "data/b/c"]),
    ],
)
def test_paths_are_below_the_prefix_or_the_folder_it_begins_in(harness: Harness, prefix: str, files: list[str]) -> None:
    harness.put("data/a", "data/b/c")
    assert harness.bring(prefix)[0] == files


def test_empty_objects_that_mark_folders_are_no_files(harness: Harness) -> None:
    harness.put("data/", "data/sub/", "data/sub/a")
    assert harness.bring("data")[0] == ["sub/a"]


def test_sharding_gives_each_object_to_one_host(harness: Harness) -> None:
    harness.put(*(f"data/{number}" for number in range(7)))
    shares = harness.bring("data/", sharded=True)
    assert sorted(len(share) for share in shares) == [2, 2, 3]
    assert sorted(name for share in shares for name in share) == [str(number) for number in range(7)]


def test_a_seed_shuffles_the_shares_the_same_way_each_time(s3: Any, bucket: str, tmp_path: Path) -> None:
    first, again, plain = (Harness(s3, bucket, tmp_path / name) for name in ("first", "again", "plain"))
    first.put(*(f"data/{number}" for number in range(9)))
    shares = first.bring("data/", sharded=True, seed=5)
    assert shares == again.bring("data/", sharded=True, seed=5)
    assert shares != plain.bring("data/", sharded=True)


def test_a_channel_for_one_instance_group_is_shared_out_in_it(harness: Harness) -> None:
    harness.put("data/a", "data/b")
    assert harness.bring("data/", groups=("gpu",)) == [["a", "b"], ["a", "b"], []]


def test_shards_are_cut_within_the_instance_groups(harness: Harness) -> None:
    harness.put("data/a", "data/b")
    assert harness.bring("data/", groups=("gpu",), sharded=True) == [["a"], ["b"], []]


def test_a_manifest_lists_the_objects(harness: Harness) -> None:
    harness.put("data/a", "data/b/c", "data/d")
    manifest = [{"prefix": f"s3://{harness.bucket}/data/"}, "a", "b/c"]
    harness.s3.put_object(Bucket=harness.bucket, Key="m.json", Body=json.dumps(manifest).encode())
    assert harness.bring("m.json", manifest=True)[0] == ["a", "b/c"]


@pytest.mark.parametrize("manifest", ["no json", "[]", '{"a": 1}', '["a"]', '[{"prefix": "data/"}, "a"]'])
def test_what_is_no_manifest_is_shown_what_one_is(harness: Harness, manifest: str) -> None:
    harness.s3.put_object(Bucket=harness.bucket, Key="m.json", Body=manifest.encode())
    with pytest.raises(FailedJobError, match="is not a manifest of the form"):
        harness.bring("m.json", manifest=True)


def test_a_manifest_that_names_a_missing_object_fails_with_its_name(harness: Harness) -> None:
    manifest = [{"prefix": f"s3://{harness.bucket}/data/"}, "gone"]
    harness.s3.put_object(Bucket=harness.bucket, Key="m.json", Body=json.dumps(manifest).encode())
    with pytest.raises(FailedJobError, match=r"data/gone: there is no such object"):
        harness.bring("m.json", manifest=True)


def test_an_empty_prefix_fails_with_what_to_do(harness: Harness) -> None:
    with pytest.raises(FailedJobError) as error:
        harness.bring("nothing/here")
    assert str(error.value).startswith('ClientError: Data download failed: channel "train": no S3 objects found under')
    assert f"s3://{harness.bucket}/nothing/here" in str(error.value)


def test_a_missing_bucket_is_named(harness: Harness) -> None:
    harness.bucket = "no-such-bucket-anywhere"
    with pytest.raises(FailedJobError, match="the bucket no-such-bucket-anywhere does not exist; create it"):
        harness.bring("data")


@pytest.mark.parametrize("key", ["data/../../escape", "data/a/../../b", "data/.."])
def test_no_key_leaves_the_channels_directory(harness: Harness, key: str) -> None:
    manifest = [{"prefix": f"s3://{harness.bucket}/data/"}, key.removeprefix("data/")]
    harness.s3.put_object(Bucket=harness.bucket, Key="m.json", Body=json.dumps(manifest).encode())
    with pytest.raises(FailedJobError, match="leaves the channel's directory"):
        harness.bring("m.json", manifest=True)
    assert not list(harness.directory.rglob("*escape*"))


def test_absolute_keys_stay_inside() -> None:
    assert str(relative_path("/etc/passwd")) == "etc/passwd"
    assert str(relative_path("a//b/./c")) == "a/b/c"
    assert [relative_path(name) for name in ("", "/", "..", "a/../b", "a\0b")] == [None] * 5


def test_an_object_that_is_also_a_folder_is_refused(harness: Harness) -> None:
    harness.put("data/a", "data/a/b/c")
    with pytest.raises(FailedJobError, match=r"data/a is an object and, for .*data/a/b/c, a folder"):
        harness.bring("data/")


def test_two_objects_for_one_file_are_refused(harness: Harness) -> None:
    harness.put("data/a/b", "data/a//b")
    with pytest.raises(FailedJobError, match="would be the same file"):
        harness.bring("data/")


def test_a_file_that_cannot_be_written_is_named(harness: Harness) -> None:
    harness.put("data/" + "x" * 300)
    with pytest.raises(FailedJobError, match="File name too long"):
        harness.bring("data/")


def tls_fails() -> None:
    raise SSLError("decryption failed or bad record mac")


@pytest.mark.parametrize("breaks", [lambda: None, tls_fails])
def test_a_broken_connection_is_made_again_where_it_broke(harness: Harness, breaks: Callable[[], None]) -> None:
    content = bytes(range(256)) * (3 << 12)
    harness.s3.put_object(Bucket=harness.bucket, Key="data/a", Body=content)
    harness.s3 = Breaking(harness.s3, after=1 << 20, times=2, change=breaks)
    assert harness.bring("data/") == [["a"]] * 3
    assert [file.read_bytes() for file in harness.directory.rglob("a")] == [content] * 3


def test_a_connection_that_breaks_again_and_again_fails_the_job_with_its_reason(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("estimators.local.engine.transfers.objects._ATTEMPTS", 1)
    harness.put("data/a")
    harness.s3 = Breaking(harness.s3, after=1, times=9, change=tls_fails)
    with pytest.raises(FailedJobError, match="bad record mac"):
        harness.bring("data/")


def test_a_cancelled_transfer_stops_between_chunks(harness: Harness) -> None:
    cancelled = threading.Event()
    harness.put("data/a")
    hosts = name_hosts(GROUPS)
    channel = channel_of(harness.bucket)
    plan = plan_channel(harness.s3, channel, hosts, {host.name: harness.directory / host.name for host in hosts})
    cancelled.set()
    with pytest.raises(CancelledError):
        fetch_all(harness.s3, plan, "it failed", cancelled=cancelled.is_set)
