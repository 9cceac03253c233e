from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import boto3
import moto
import pytest

from smddp.container import source
from smddp.container.source import check_entry_point, fetch_source, unpack
from smddp.errors import SourceError


def archive(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    """A .tar.gz of members: a name, and TarInfo's fields beside ``data``."""
    with tarfile.open(path, "w:gz") as tar:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            data = fields.pop("data", b"")
            assert isinstance(data, bytes)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return path


def fetch(uri: str | Path, code: Path) -> None:
    fetch_source(str(uri), code, region=None, environ={})


def test_unpacks_files_directories_and_links_that_stay_inside(tmp_path):
    bundle = archive(
        tmp_path / "b.tar.gz",
        ("./", {"type": tarfile.DIRTYPE, "mode": 0o2775}),
        ("./train.py", {"data": b"print(1)"}),
        ("bin/run.sh", {"data": b"echo", "mode": 0o755}),
        ("lib/same.py", {"type": tarfile.SYMTYPE, "linkname": "../train.py"}),
        ("copy.py", {"type": tarfile.LNKTYPE, "linkname": "./train.py"}),
    )
    fetch(bundle, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "print(1)"
    assert (tmp_path / "code" / "lib" / "same.py").read_text() == "print(1)"
    assert (tmp_path / "code" / "copy.py").read_text() == "print(1)"
    assert os.access(tmp_path / "code" / "bin" / "run.sh", os.X_OK)
    assert not os.access(tmp_path / "code" / "copy.py", os.X_OK)


LINK, HARD, DEVICE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE


@pytest.mark.parametrize(
    ("members", "named", "problem"),
    [
        ([("../evil.py", {})], "../evil.py", "'..'"),
        ([("a/../../evil.py", {})], "a/../../evil.py", "'..'"),
        ([("/etc/evil", {})], "/etc/evil", "absolute"),
        ([("out", {"type": LINK, "linkname": "/etc"})], "out", "outside"),
        ([("out", {"type": LINK, "linkname": "../.."})], "out", "outside"),
        ([("a/out", {"type": LINK, "linkname": "../../x"})], "a/out", "outside"),
        ([("d", {"type": LINK, "linkname": "."}), ("d/evil.py", {"data": b"x"})], "d/evil.py", "behind the link d"),
        (
            [("b", {"type": LINK, "linkname": "."}), ("out", {"type": LINK, "linkname": "b/b/b/../../.."})],
            "out",
            "outside",
        ),
        ([("passwd", {"type": HARD, "linkname": "/etc/passwd"})], "passwd", "hard link"),
        ([("passwd", {"type": HARD, "linkname": "../../etc/passwd"})], "passwd", "hard link"),
        ([("l", {"type": LINK, "linkname": "x"}), ("h", {"type": HARD, "linkname": "l"})], "h", "hard link"),
        ([("null", {"type": DEVICE})], "null", "neither file, directory nor link"),
        ([("pipe", {"type": tarfile.FIFOTYPE})], "pipe", "neither file, directory nor link"),
        ([("su", {"mode": 0o4755})], "su", "setuid"),
        ([("sg", {"mode": 0o2755})], "sg", "setgid"),
    ],
)
def test_refuses_the_whole_bundle_and_names_the_member(tmp_path, members, named, problem):
    bundle = archive(tmp_path / "b.tar.gz", ("good.py", {"data": b"x"}), *[(n, dict(f)) for n, f in members])
    code = tmp_path / "code"
    with pytest.raises(SourceError) as error:
        fetch(bundle, code)
    assert repr(named) in str(error.value)
    assert problem in str(error.value)
    assert not [path for path in code.rglob("*") if path.is_symlink()]
    assert {path.name for path in tmp_path.iterdir()} == {"b.tar.gz", "code"}


def test_refuses_too_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_MEMBERS", 2)
    bundle = archive(tmp_path / "b.tar.gz", ("a", {}), ("b", {}), ("c", {}))
    with pytest.raises(SourceError, match="member 'c': it is one more than the 2 members"):
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())


def test_refuses_too_many_bytes_by_what_the_headers_say(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_BYTES", 1000)
    bundle = archive(tmp_path / "b.tar.gz", ("a", {"data": b"x" * 600}), ("b", {"data": b"x" * 600}))
    with pytest.raises(SourceError, match="member 'b': with it the archive unpacks to more than 1,000 bytes"):
        fetch(bundle, tmp_path / "code")


@pytest.mark.parametrize("damage", ["text", "truncated", "corrupt"])
def test_says_so_when_the_bundle_is_damaged(tmp_path, damage):
    bundle = archive(tmp_path / "b.tar.gz", ("a.py", {"data": os.urandom(50_000)}))
    whole = bundle.read_bytes()
    bundle.write_bytes(
        {"text": b"hello", "truncated": whole[:20_000], "corrupt": whole[:9000] + b"zz" + whole[9002:]}[damage]
    )
    with pytest.raises(SourceError, match=r"b\.tar\.gz can't be unpacked"):
        unpack(bundle, tmp_path / "code", name=str(bundle))


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


@pytest.mark.parametrize("header", ["path", "linkpath"])
def test_refuses_a_name_that_no_file_can_have_before_anything_is_written(tmp_path, header):
    member = {"type": LINK, "linkname": "train.py", "pax_headers": {header: "a\0b"}}
    bundle = archive(tmp_path / "b.tar.gz", ("train.py", {}), ("a", member))
    with pytest.raises(SourceError, match="NUL"):
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())
