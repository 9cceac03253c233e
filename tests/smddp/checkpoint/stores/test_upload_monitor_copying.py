"""A checkpoint moves from a directory to S3 and is the same there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from smddp.checkpoint.restore.listing import inspect
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.upload_monitor import copy_checkpoint, missing_files
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint

pytestmark = pytest.mark.seaweedfs

STATE = {"model": {"weight": torch.arange(3_000_000.0), "none": torch.zeros(0)}, "loop": {"step": 7}}
ALL = ["digests.json", "manifest.json", "model.safetensors", "state.json"]


@pytest.fixture
def source(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_it_is_valid_where_it_is_copied_to(source: DirectoryStore, store: S3Store) -> None:
    committed = write_checkpoint(source, 7, STATE).to_json()
    assert sorted(missing_files(store, committed, among=ALL)) == ALL
    copy_checkpoint(source, store, committed)
    assert missing_files(store, committed, among=ALL) == []
    assert inspect(store, 7).status == "valid"
    copy_checkpoint(source, store, committed)


def test_only_what_is_missing_or_of_another_size_is_copied(
    source: DirectoryStore, store: S3Store, s3: Any, bucket: str
) -> None:
    manifest = write_checkpoint(source, 7, STATE)
    key = f"runs/7/step-000000000007/{manifest.directory}"
    store.write(7, manifest.directory, "state.json", [memoryview((source.root / key[7:] / "state.json").read_bytes())])
    s3.put_object(Bucket=bucket, Key=f"{key}/model.safetensors", Body=b"half of it")
    before = s3.head_object(Bucket=bucket, Key=f"{key}/state.json")["LastModified"]
    assert sorted(missing_files(store, manifest.to_json(), among=ALL)) == [
        "digests.json",
        "manifest.json",
        "model.safetensors",
    ]
    copy_checkpoint(source, store, manifest.to_json())
    assert s3.head_object(Bucket=bucket, Key=f"{key}/state.json")["LastModified"] == before
    assert inspect(store, 7).status == "valid"


def test_it_takes_the_place_of_an_older_attempt(source: DirectoryStore, store: S3Store) -> None:
    copy_checkpoint(source, store, write_checkpoint(source, 7, STATE).to_json())
    newer = write_checkpoint(source, 7, STATE, attempt=2).to_json()
    copy_checkpoint(source, store, newer)
    assert store.read_manifest(7) == newer


def test_what_is_not_whole_is_not_committed_elsewhere(source: DirectoryStore, store: S3Store) -> None:
    manifest = write_checkpoint(source, 7, STATE)
    (Path(source.path(7)) / manifest.directory / "model.safetensors").write_bytes(b"?")
    with pytest.raises(CheckpointError, match="is not as it was written"):
        copy_checkpoint(source, store, manifest.to_json())
    assert store.read_manifest(7) is None
