from __future__ import annotations

import os
from pathlib import Path

import boto3
import moto
import pytest

from smddp.container.source import check_entry_point, fetch_source
from smddp.errors import SourceError
from tests.smddp.container.archives import archive


def fetch(uri: str | Path, code: Path) -> None:
    fetch_source(str(uri), code, region=None, environ={})


def test_takes_a_directory_and_a_file_uri(tmp_path):
    (tmp_path / "my src").mkdir()
    (tmp_path / "my src" / "train.py").write_text("x")
    fetch((tmp_path / "my src").as_uri(), tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "x"


def test_leaves_code_alone_that_the_image_brings(tmp_path):
    (tmp_path / "train.py").write_text("x")
    fetch(tmp_path, tmp_path)
    assert (tmp_path / "train.py").read_text() == "x"


def test_says_what_may_be_named_when_nothing_is_there(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        fetch(tmp_path / "none", tmp_path / "code")


def test_fetches_from_s3_and_says_which_object_is_missing(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    bundle = archive(tmp_path / "b.tar.gz", ("train.py", {"data": b"print(1)"}))
    with moto.mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="code")
        s3.upload_file(str(bundle), "code", "job/source.tar.gz")
        fetch_source("s3://code/job/source.tar.gz", tmp_path / "code", region="us-east-1", environ={})
        with pytest.raises(SourceError, match=r"s3://code/job/other.tar.gz can't be downloaded: .*404"):
            fetch_source("s3://code/job/other.tar.gz", tmp_path / "code", region="us-east-1", environ={})
    assert (tmp_path / "code" / "train.py").read_text() == "print(1)"


def test_an_entry_point_is_a_file_inside(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "train.sh").write_text("")
    assert check_entry_point("bin/train.sh", tmp_path) == "bin/train.sh"
    assert os.access(tmp_path / "bin" / "train.sh", os.X_OK)


@pytest.mark.parametrize("name", ["/etc/passwd", "../train.py", "a/./b.py", "-c", "a;b.py", "a b.py", "a//b.py"])
def test_an_entry_point_of_any_other_form_is_refused(tmp_path, name):
    with pytest.raises(SourceError, match="must be a path inside the source directory"):
        check_entry_point(name, tmp_path)


@pytest.mark.parametrize("name", [None, ""])
def test_a_job_without_entry_point_is_told_how_to_name_one(tmp_path, name):
    with pytest.raises(SourceError, match="sagemaker_program"):
        check_entry_point(name, tmp_path)


def test_a_long_list_of_files_is_cut(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.py").touch()
    with pytest.raises(SourceError, match=r"holds 00.py, .*19.py and 10 more\.$"):
        check_entry_point("train.py", tmp_path)
