"""Files of weights from anywhere: what they begin with decides, and none fills the disk or runs code."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from smddp.checkpoint.convert.torch_files import read_torch_file, read_weights_file
from smddp.errors import CheckpointError


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_old_file_is_not_taken_for_a_new_one_because_a_zip_file_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("data.pkl", b"")
    assert zipfile.is_zipfile(path)
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch 2.5 would run code in it"))
    with pytest.raises(CheckpointError, match="cannot read older ones safely"):
        read_torch_file(io.BytesIO(path.read_bytes()) if in_memory else path, "w.pt")


def pack(path: Path, content: bytes, name: str = "model.pt") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


def test_an_archive_within_an_archive_is_not_opened(tmp_path: Path) -> None:
    inner = pack(tmp_path / "inner.tar.gz", b"")
    with pytest.raises(CheckpointError, match=r"^model.pt in outer is not a file that torch.save wrote"):
        read_weights_file(pack(tmp_path / "outer.tar.gz", inner.read_bytes()), "outer")


def test_a_file_of_holes_in_an_archive_is_refused(tmp_path: Path) -> None:
    """A few hundred bytes would become a tebibyte: a header of GNU tar's for a file that is all hole."""
    header = bytearray(tarfile.TarInfo("model.pt").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = b"\x80" + (2**40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "model.tar.gz"
    path.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(CheckpointError, match="has holes"):
        read_weights_file(path, "model.tar.gz")


def test_what_the_disk_has_no_room_for_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=99))
    with pytest.raises(CheckpointError, match=r"has 100 bytes, and .* has 99 free: set TMPDIR"):
        read_weights_file(pack(tmp_path / "model.tar.gz", bytes(100)), "model.tar.gz")
