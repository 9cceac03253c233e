"""Files of weights from anywhere: what they begin with decides, and none fills the disk or runs code."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
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


def _rewrite(path: Path, *, compression: int = zipfile.ZIP_STORED, cut: int = 0) -> None:
    """Pack a file of torch.save anew, its records compressed, or those of tensors shorter."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content[: len(content) - cut] if "/data/" in name else content)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed or encrypted, which torch.save does not do"),
        ({"cut": 4}, r"needs a record data/0 of 4000 bytes, and has one of 3996 bytes"),
    ],
)
def test_records_that_do_not_hold_what_their_tensors_need_are_refused(
    tmp_path: Path, changes: dict[str, int], told: str, in_memory: bool
) -> None:
    path = tmp_path / "w.pt"
    torch.save({"a": torch.arange(1000.0)}, path)
    _rewrite(path)
    assert torch.equal(read_torch_file(path, "w.pt")["a"], torch.arange(1000.0))
    _rewrite(path, **changes)
    with pytest.raises(CheckpointError, match=told):
        read_torch_file(io.BytesIO(path.read_bytes()) if in_memory else path, "w.pt")


def test_a_flipped_bit_in_a_torch_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({"a": torch.arange(1000.0)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(1000.0).numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"w.pt is damaged: w/data/0 does not match its checksum"):
        read_torch_file(path, "w.pt")


def test_a_torch_file_without_checksums_is_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(1000.0)}, tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(read_torch_file(tmp_path / "w.pt", "w.pt")["a"], torch.arange(1000.0))


def _laughs() -> list[object]:
    value: list[object] = ["ha"]
    for _ in range(60):
        value = [value] * 2
    return value


def _itself() -> dict[str, object]:
    value: dict[str, object] = {"a": torch.ones(1)}
    value["itself"] = value
    return value


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: {"a": torch.zeros(1).expand(10**12)}, "would take 40000000000.. bytes in memory"),
        (lambda: {str(i): torch.zeros(2**20).as_strided((2**16, 2**10), (i, 1)) for i in range(16)}, "would take"),
        (_laughs, "would take"),
        (_itself, "nested too deep"),
    ],
    ids=["stride 0", "many views", "many times the same list", "a dict in itself"],
)
def test_a_small_file_that_would_become_a_huge_state_is_refused(
    tmp_path: Path, make: Callable[[], object], told: str, zipped: bool
) -> None:
    torch.save(make(), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=told):
        read_torch_file(tmp_path / "w.pt", "w.pt")


def test_an_expanded_mask_is_read(tmp_path: Path) -> None:
    torch.save({"mask": torch.ones(1, dtype=torch.bool).expand(4096, 4096)}, tmp_path / "w.pt")
    assert read_torch_file(tmp_path / "w.pt", "w.pt")["mask"].all()


def header(size: bytes, *, kind: bytes = tarfile.REGTYPE, name: str = "model.pt") -> bytes:
    """Give the header of a member with any size."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136], block[156:157] = size, kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HUGE = b"\x80" + (2**80).to_bytes(11, "big")
MINUS_512 = (2**96 - 512).to_bytes(12, "big")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE])
@pytest.mark.parametrize("size", [HUGE, MINUS_512], ids=["huge", "negative"])
def test_an_archive_with_an_impossible_size_is_refused(tmp_path: Path, kind: bytes, size: bytes) -> None:
    path = tmp_path / "model.tar.gz"
    path.write_bytes(gzip.compress(header(b"%011o\0" % 0, name="code.py") + header(size, kind=kind) + bytes(2048)))
    with pytest.raises(CheckpointError, match=r"^model.tar.gz is not a model.tar.gz, or it is damaged: at byte \d+, "):
        read_weights_file(path, "model.tar.gz")


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_an_archive_that_is_cut_is_refused(tmp_path: Path, cut: int) -> None:
    whole = pack(tmp_path / "model.tar.gz", bytes(range(256)) * 100).read_bytes()
    (tmp_path / "model.tar.gz").write_bytes(whole[:-cut])
    with pytest.raises(CheckpointError, match="or it is damaged"):
        read_weights_file(tmp_path / "model.tar.gz", "model.tar.gz")
