"""What a job left, on this machine; and what is refused of it. Its checkpoints, where there are none."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from estimators.errors import EstimatorError
from estimators.job_handle import files
from estimators.job_handle.service import EndedLocalJob
from estimators.training_job import TrainingJob

BASE = "digits/output"


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="jobs")
        yield client


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as bundle:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            bundle.addfile(member, io.BytesIO(b"it"))
    return content.getvalue()


def described(*, model: str | None = f"s3://jobs/{BASE}/model.tar.gz", compression: str = "GZIP") -> dict[str, Any]:
    return {
        "TrainingJobName": "digits",
        "TrainingJobStatus": "Completed",
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/", "CompressionType": compression},
        **({} if model is None else {"ModelArtifacts": {"S3ModelArtifacts": model}}),
    }


def test_archives_are_unpacked(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt", "sub/config.json"))
    assert files.download(s3, described(), tmp_path) == files.JobFiles(model=tmp_path / "model", output=None)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "model/model.pt",
        "model/sub/config.json",
    ]


def test_a_local_job_with_its_output_in_s3_is_downloaded_through_its_session(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt"))
    job = TrainingJob("digits", EndedLocalJob("digits", described(), s3))
    assert job.download(tmp_path).model == tmp_path / "model"


def test_output_that_a_failed_job_left_comes_without_a_model(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/output.tar.gz", Body=archive("plot.png"))
    assert files.download(s3, described(model=None), tmp_path) == files.JobFiles(model=None, output=tmp_path / "output")
    assert (tmp_path / "output" / "plot.png").read_text() == "it"


def test_files_that_were_not_packed_come_as_they_are(s3: Any, tmp_path: Path) -> None:
    for name in ("model/model.pt", "data/deep/plot.png"):
        s3.put_object(Bucket="jobs", Key=f"{BASE}/{name}", Body=b"it")
    files.download(s3, described(model=f"s3://jobs/{BASE}/model/", compression="NONE"), tmp_path)
    assert (tmp_path / "model" / "model.pt").read_text() == "it"
    assert (tmp_path / "output" / "deep" / "plot.png").read_text() == "it"


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped"])
def test_an_archive_that_leaves_its_directory_is_refused(s3: Any, tmp_path: Path, name: str) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt", name))
    with pytest.raises(EstimatorError, match=r"^s3://jobs/digits/output/model.tar.gz is refused: member "):
        files.download(s3, described(), tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["model"]


def test_a_key_that_leaves_its_directory_is_refused(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model/../../escaped", Body=b"it")
    with pytest.raises(EstimatorError, match="it would lie outside"):
        files.download(s3, described(model=f"s3://jobs/{BASE}/model/"), tmp_path / "a" / "b")


def test_an_archive_that_was_cut_is_refused(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt")[:-20])
    with pytest.raises(EstimatorError, match=r"model.tar.gz can't be unpacked as a .tar.gz"):
        files.download(s3, described(), tmp_path)


def test_folder_markers_of_the_console_are_no_files(s3: Any, tmp_path: Path) -> None:
    for name in ("model/", "model/sub/", "model/sub/model.pt"):
        s3.put_object(Bucket="jobs", Key=f"{BASE}/{name}", Body=b"it" if name.endswith("pt") else b"")
    files.download(s3, described(model=f"s3://jobs/{BASE}/model/"), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "model" / "sub" / "model.pt"]


@pytest.mark.parametrize("letter", ["#", "?", "%20", " "])
def test_a_key_may_have_any_letter(s3: Any, tmp_path: Path, letter: str) -> None:
    s3.put_object(Bucket="jobs", Key=f"run{letter}1/model.tar.gz", Body=archive("model.pt"))
    files.download(s3, described(model=f"s3://jobs/run{letter}1/model.tar.gz"), tmp_path)
    assert (tmp_path / "model" / "model.pt").read_text() == "it"


def test_what_is_in_the_way_is_found_before_anything_is_fetched(s3: Any, tmp_path: Path) -> None:
    for kind in ("model", "output"):
        s3.put_object(Bucket="jobs", Key=f"{BASE}/{kind}.tar.gz", Body=archive("file"))
    (tmp_path / "output").write_text("a file")
    with pytest.raises(EstimatorError, match=r"/output is no directory\. Remove it"):
        files.download(s3, described(), tmp_path)
    assert not (tmp_path / "model").exists()
    with pytest.raises(EstimatorError, match=r"can't be written to .*output/model: .* Give another directory"):
        files.download(s3, described(), tmp_path / "output")


def test_an_object_that_s3_does_not_show_is_refused_before_anything_is_fetched(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt"))
    head = s3.head_object

    def refuse(*, Bucket: str, Key: str) -> Any:  # noqa: N803 - boto3's names
        if Key.endswith("output.tar.gz"):
            raise ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, "HeadObject")
        return head(Bucket=Bucket, Key=Key)

    monkeypatch.setattr(s3, "head_object", refuse)
    with pytest.raises(EstimatorError, match=r"could not read s3://jobs/.*output.tar.gz: 403 .* s3:ListBucket"):
        files.download(s3, described(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_lies_in_the_given_directory_until_it_is_unpacked(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="jobs", Key=f"{BASE}/model.tar.gz", Body=archive("model.pt"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    files.download(s3, described(), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["model"]


def test_a_job_that_left_nothing_says_so(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(EstimatorError, match="neither a model nor output: it is Completed"):
        files.download(s3, described(model=None), tmp_path)


def test_an_empty_place_is_nothing_to_go_on_from(s3: Any) -> None:
    with pytest.raises(EstimatorError, match="nothing in s3://jobs/checkpoints to resume from"):
        files.require_checkpoint("s3://jobs/checkpoints", s3)
    assert files.list_checkpoints("s3://jobs/checkpoints", s3, deep=False) == []
    s3.put_object(Bucket="jobs", Key="checkpoints/epoch=3.ckpt", Body=b"another format")
    files.require_checkpoint("s3://jobs/checkpoints", s3)


def test_a_place_without_a_valid_checkpoint_is_nothing_to_go_on_from(s3: Any) -> None:
    s3.put_object(Bucket="jobs", Key="checkpoints/step-000000000010/manifest.json", Body=b"{")
    with pytest.raises(EstimatorError, match=r"No checkpoint in s3://jobs/checkpoints is valid \(step 10: damaged"):
        files.require_checkpoint("s3://jobs/checkpoints", s3)
    assert [info.status for info in files.list_checkpoints("s3://jobs/checkpoints", s3, deep=False)] == ["damaged"]


def test_s3_that_does_not_list_the_files_of_another_script_is_told_in_words(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_store", lambda *_: SimpleNamespace(newest_first=list))
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")
    monkeypatch.setattr(s3, "list_objects_v2", Mock(side_effect=refused))
    with pytest.raises(EstimatorError, match=r"could not read s3://jobs/checkpoints: AccessDenied .*s3:ListBucket"):
        files.require_checkpoint("s3://jobs/checkpoints", s3)
