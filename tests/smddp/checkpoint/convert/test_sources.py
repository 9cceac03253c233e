"""What a location names, in S3 too, and what is said when it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import torch
from botocore.exceptions import ReadTimeoutError
from botocore.response import StreamingBody
from moto import mock_aws
from torch import nn

from smddp.checkpoint.convert import saved_model
from smddp.checkpoint.convert.saved_model import write_weights
from smddp.checkpoint.convert.sources import find_source
from smddp.checkpoint.stores import StoreError, open_store
from smddp.errors import CheckpointError
from smddp.storage.s3_bucket import PATIENCE
from smddp.storage.s3_errors import Retries
from tests.smddp.checkpoint.by_hand import write_checkpoint


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket in this process's own S3."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_prefix_in_s3_with_a_model_is_read_as_a_directory_is(s3: str, tmp_path: Path, slash: str) -> None:
    model = nn.Linear(3, 2)
    write_weights(model.state_dict(), tmp_path)
    for path in tmp_path.iterdir():
        boto3.client("s3").upload_file(str(path), "bucket", f"m/{path.name}")
    source = find_source(f"{s3}/m{slash}")
    assert str(source) == f"{s3}/m/model.safetensors"
    found, _ = source.read_part("model")
    assert torch.equal(found["weight"], model.weight)


def test_a_model_of_several_files_in_s3_is_read_by_its_index(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_BYTES", 1)
    model = nn.Linear(3, 2)
    write_weights(model.state_dict(), tmp_path)
    for path in tmp_path.iterdir():
        boto3.client("s3").upload_file(str(path), "bucket", f"m/{path.name}")
    found, origin = find_source(f"{s3}/m").read_part("model")
    assert origin == f"{s3}/m/model.safetensors.index.json"
    assert torch.equal(found["weight"], model.weight)
    boto3.client("s3").delete_object(Bucket="bucket", Key="m/model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"there is no s3://bucket/m/model-00002-of-00002\.safetensors"):
        find_source(f"{s3}/m").read_part("model")


@pytest.mark.slow
def test_checkpoints_in_s3_come_before_a_model_beside_them(s3: str) -> None:
    write_checkpoint(open_store(f"{s3}/m"), 1, {"model": {"a": torch.ones(1)}})
    boto3.client("s3").put_object(Bucket="bucket", Key="m/model.pt", Body=b"")
    assert find_source(f"{s3}/m").kind == "checkpoint"
    assert find_source(f"{s3}/other").kind == "checkpoint"


def test_an_object_that_breaks_off_each_time_is_one_clear_error(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3.client("s3").put_object(Bucket="bucket", Key="w.pt", Body=b"content")

    def break_off(*_: object) -> int:
        raise ReadTimeoutError(endpoint_url=s3)

    monkeypatch.setattr(StreamingBody, "readinto", break_off)
    monkeypatch.setattr(Retries, "waited", PATIENCE)
    with pytest.raises(StoreError, match=f"could not read {s3}/w.pt: .*; check the network") as error:
        find_source(f"{s3}/w.pt").read_part("model")
    assert error.value.transient
