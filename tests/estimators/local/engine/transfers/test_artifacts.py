"""The model and the output data of all hosts, in S3."""

from __future__ import annotations

import io
import logging
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.transfers.artifacts import upload_model, upload_output
from estimators.local.engine.transfers.objects import FileUri, S3Uri, require_writable, upload

FilesIn = Callable[[str, str], dict[str, bytes]]


@pytest.fixture
def output(bucket: str) -> S3Uri:
    return S3Uri(bucket=bucket, key="job/output")


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "algo-1", tmp_path / "algo-2"]
    for root in roots:
        (root / "model").mkdir(parents=True)
        (root / "output" / "data").mkdir(parents=True)
    return roots


@pytest.fixture
def trees(roots: list[Path]) -> list[HostTree]:
    return [HostTree(root) for root in roots]


def unpack(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as bundle:
        assert all((member.uid, member.uname) == (0, "root") for member in bundle)
        return {m.name: bundle.extractfile(m).read().decode() for m in bundle if m.isfile()}  # type: ignore[union-attr]


def test_the_models_of_all_hosts_are_one_archive(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    (roots[0] / "model" / "weights").write_text("w")
    (roots[1] / "model" / "sub").mkdir()
    (roots[1] / "model" / "sub" / "more").write_text("m")
    uri = upload_model(s3, trees, output, tmp_path, compressed=True)
    assert uri == f"s3://{output.bucket}/job/output/model.tar.gz"
    stored = files_in(output.bucket, "job/output/")
    assert list(stored) == ["model.tar.gz"]
    assert unpack(stored["model.tar.gz"]) == {"weights": "w", "sub/more": "m"}
    assert not (tmp_path / "model.tar.gz").exists()


def test_an_empty_model_is_an_empty_archive(
    s3: Any, trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    upload_model(s3, trees, output, tmp_path, compressed=True)
    assert unpack(files_in(output.bucket, "job/output/")["model.tar.gz"]) == {}


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("link", [True, False])
def test_a_file_in_place_of_the_model_directory_fails_the_upload(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, compressed: bool, link: bool
) -> None:
    model = roots[1] / "model"
    model.rmdir()
    file = roots[1] / "weights" if link else model
    file.write_text("w")
    if link:
        model.symlink_to("weights")
    with pytest.raises(FailedJobError, match=r"^ClientError: Model upload failed.*: Not a directory \(/opt/ml/model\)"):
        upload_model(s3, trees, output, tmp_path, compressed=compressed)


def test_a_model_directory_that_was_removed_is_an_empty_model(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    (roots[0] / "model").rmdir()
    upload_model(s3, trees, output, tmp_path, compressed=True)
    assert unpack(files_in(output.bucket, "job/output/")["model.tar.gz"]) == {}


def test_output_data_is_left_out_if_there_is_none(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    upload_output(s3, trees, output, tmp_path, compressed=True)
    assert files_in(output.bucket, "job/output/") == {}
    (roots[1] / "output" / "data" / "plot").write_text("p")
    (roots[1] / "output" / "failure").write_text("no data")
    upload_output(s3, trees, output, tmp_path, compressed=True)
    assert unpack(files_in(output.bucket, "job/output/")["output.tar.gz"]) == {"plot": "p"}


def test_uncompressed_outputs_are_single_objects(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    (roots[0] / "model" / "weights").write_text("w")
    (roots[0] / "output" / "data" / "plot").write_text("p")
    uri = upload_model(s3, trees, output, tmp_path, compressed=False)
    upload_output(s3, trees, output, tmp_path, compressed=False)
    assert uri == f"s3://{output.bucket}/job/output/model/"
    assert files_in(output.bucket, "job/output/") == {"model/weights": b"w", "data/plot": b"p"}


def test_of_two_files_with_one_name_the_first_hosts_is_kept_and_it_is_said(
    s3: Any,
    roots: list[Path],
    trees: list[HostTree],
    output: S3Uri,
    tmp_path: Path,
    files_in: FilesIn,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, root in enumerate(roots, start=1):
        (root / "model" / "weights").write_text(f"of {number}")
    with caplog.at_level(logging.WARNING):
        upload_model(s3, trees, output, tmp_path, compressed=True)
    assert unpack(files_in(output.bucket, "job/output/")["model.tar.gz"]) == {"weights": "of 1"}
    assert "algo-2/model/weights is left out" in caplog.text


def test_links_stay_links_and_pipes_are_left_out(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    model = roots[0] / "model"
    (model / "v1").mkdir()
    (model / "v1" / "weights").write_text("w")
    (model / "latest").symlink_to("v1")
    os.mkfifo(model / "pipe")
    upload_model(s3, trees, output, tmp_path, compressed=True)
    with tarfile.open(fileobj=io.BytesIO(files_in(output.bucket, "job/output/")["model.tar.gz"])) as bundle:
        assert bundle.getmember("latest").issym()
        assert sorted(bundle.getnames()) == ["latest", "v1/weights"]


def test_any_file_name_is_one_in_the_archive(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    names = [b"not-utf-8-\xff", b"new\nline", b"\xed\xa0\x80", b"bell\x07", b"x" * 255]
    for name in names:
        (roots[0] / "model" / os.fsdecode(name)).write_text("w")
    upload_model(s3, trees, output, tmp_path, compressed=True)
    unpacked = unpack(files_in(output.bucket, "job/output/")["model.tar.gz"])
    assert sorted(map(os.fsencode, unpacked)) == sorted(names)


def test_a_file_whose_name_is_no_key_holds_up_no_other_and_fails_the_upload(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, files_in: FilesIn
) -> None:
    for name in ("a", os.fsdecode(b"b-\xff"), "c"):
        (roots[0] / "model" / name).write_text("w")
    with pytest.raises(FailedJobError, match=r"Model upload failed: .*the name is not UTF-8") as failure:
        upload_model(s3, trees, output, tmp_path, compressed=False)
    assert str(failure.value).isprintable()
    assert set(files_in(output.bucket, "job/output/")) == {"model/a", "model/c"}


def test_an_archive_that_has_no_room_leaves_none_of_it(
    s3: Any, roots: list[Path], trees: list[HostTree], output: S3Uri, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (roots[0] / "model" / "weights").write_text("w")
    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(FailedJobError, match=r"model\.tar\.gz: No space left on device$"):
        upload_model(s3, trees, output, tmp_path, compressed=True)
    assert not (tmp_path / "model.tar.gz").exists()


def test_a_directory_of_this_machine_takes_them_too(roots: list[Path], trees: list[HostTree], tmp_path: Path) -> None:
    (roots[1] / "model" / "weights").write_text("1")
    longest = "p" * 255
    (roots[0] / "output" / "data" / longest).write_text("2")
    place, s3 = FileUri(path=tmp_path / "to" / "come"), object()
    require_writable(s3, place, "S3OutputPath")  # type: ignore[arg-type]  # no S3 is asked
    assert not place.path.exists()
    archive = upload_model(s3, trees, place, tmp_path, compressed=True)  # type: ignore[arg-type]
    assert archive == f"file://{place.path}/model.tar.gz"
    assert unpack((place.path / "model.tar.gz").read_bytes()) == {"weights": "1"}
    upload_output(s3, trees, place, tmp_path, compressed=False)  # type: ignore[arg-type]
    assert {path.name for path in place.path.rglob("*")} == {"model.tar.gz", "data", longest}


def test_of_two_jobs_that_leave_a_file_in_one_place_at_once_one_is_there_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [b"1" * 1000, b"2" * 500]
    for content in contents:
        (tmp_path / str(len(content))).write_bytes(content)
    place, s3 = FileUri(path=tmp_path / "out" / "model.tar.gz"), object()

    def slowly(source: Path, target: Path) -> None:
        monkeypatch.undo()
        with target.open("wb") as file:
            file.write(source.read_bytes()[:600])
            file.flush()
            upload(s3, tmp_path / "500", place)  # type: ignore[arg-type]
            assert place.path.read_bytes() == contents[1]
            file.write(source.read_bytes()[600:])

    monkeypatch.setattr("shutil.copyfile", slowly)
    upload(s3, tmp_path / "1000", place)  # type: ignore[arg-type]
    assert place.path.read_bytes() == contents[0]
    assert list(place.path.parent.iterdir()) == [place.path]


def test_what_is_no_directory_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedJobError, match=f"no directory that you can write to .{tmp_path}/file"):
        require_writable(object(), FileUri(path=tmp_path / "file" / "out"), "S3OutputPath")  # type: ignore[arg-type]
