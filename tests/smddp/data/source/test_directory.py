"""The files of a directory, listed and read in sequence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smddp.data.source import Blob, DirectorySource, Source, open_source
from smddp.errors import DataError


def fill(root: Path, *names: str, content: bytes = b"0123456789") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_lists_all_files_at_any_depth_by_name(tmp_path: Path) -> None:
    fill(tmp_path, "b.tar", "a/z.tar", "a/deep/x.jsonl")
    source = open_source(tmp_path)
    assert isinstance(source, Source)
    assert str(source) == str(tmp_path)
    assert source.list() == [Blob(name=name, size=10) for name in ("a/deep/x.jsonl", "a/z.tar", "b.tar")]


@pytest.mark.parametrize(
    "name", [".a.tar.Xy12", "_temporary/a.tar", "_SUCCESS", "a.tar.tmp", "a.tar.PARTIAL", ".git/a", "a~", "sub/.x"]
)
def test_leaves_out_what_others_have_not_finished(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "a.tar", name)
    with caplog.at_level("INFO"):
        assert [blob.name for blob in DirectorySource(tmp_path).list()] == ["a.tar"]
    (line,) = caplog.messages
    assert f"left out 1 path in {tmp_path}, {name.split('/a')[0]} for one: names that begin with . _ ~ or" in line


def test_follows_links_but_not_in_circles(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", "a.tar")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "circle").symlink_to(root)
    (root / "b.tar").symlink_to(tmp_path / "elsewhere" / "a.tar")
    assert [blob.name for blob in DirectorySource(root).list()] == ["b.tar", "linked/a.tar"]


def test_leaves_out_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert DirectorySource(tmp_path).list() == []


@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [(0, None, b"0123456789"), (3, None, b"3456789"), (3, 4, b"3456"), (8, 100, b"89"), (10, None, b""), (99, 5, b"")],
)
def test_reads_a_piece_of_a_file(tmp_path: Path, start: int, size: int | None, expected: bytes) -> None:
    fill(tmp_path, "a")
    with DirectorySource(tmp_path).open("a", start, size) as file:
        assert file.read(2) + file.read() == expected
    assert file.closed


def test_a_file_in_a_directory_can_be_sought_in(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    with DirectorySource(tmp_path).open("a", 2) as file:
        assert file.seekable()
        assert file.seek(3, os.SEEK_CUR) == 3
        assert file.read(2) == b"56"
        file.seek(0)
        assert file.read() == b"23456789"


@pytest.mark.parametrize("location", ["gs://bucket/x", "s3:/bucket", ""])
def test_refuses_a_location_that_is_no_place(location: str) -> None:
    with pytest.raises(DataError, match="give a directory or"):
        open_source(location)


def test_says_what_is_wrong_with_a_location(tmp_path: Path) -> None:
    fill(tmp_path, "file")
    with pytest.raises(DataError, match="does not exist"):
        DirectorySource(tmp_path / "nothing").list()
    with pytest.raises(DataError, match="is not a directory"):
        DirectorySource(tmp_path / "file").list()
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"cannot list .*dangling\.tar: No such file"):
        DirectorySource(tmp_path).list()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret"])
def test_opens_nothing_outside(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "secret", "root/a/b")
    with pytest.raises(DataError, match="is not a file below"):
        DirectorySource(tmp_path / "root").open(name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot open .*gone\.tar: No such file"):
        DirectorySource(tmp_path).open("gone.tar")
