"""Archives of weights: one gzip member that every program reads, written in a fraction of zlib's time."""

from __future__ import annotations

import gzip
import io
import random
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.local.engine.transfers.artifacts import fast_gzip

RANDOM = random.Random(0)
SINGLES = b"".join(struct.pack("<f", RANDOM.gauss(0, 0.02)) for _ in range(1 << 16))
HALVES = b"".join(SINGLES[start + 2 : start + 4] for start in range(0, len(SINGLES), 4))  # bfloat16: the upper half
TEXT = Path(tarfile.__file__).read_bytes() * 2


def packed(*writes: bytes) -> bytes:
    target = io.BytesIO()
    with fast_gzip(target) as stream:
        for content in writes:
            stream.write(content)
    return target.getvalue()


@given(st.lists(st.one_of(st.binary(), st.sampled_from([SINGLES, HALVES, TEXT, bytes(3 << 20)])), max_size=4))
def test_what_is_written_is_read_again_from_a_single_member(writes: list[bytes]) -> None:
    archive = packed(*writes)
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)  # stops at the end of the first member
    assert member.decompress(archive) + member.flush() == b"".join(writes) == gzip.decompress(archive)
    assert (member.eof, member.unused_data) == (True, b"")


@pytest.mark.parametrize(
    ("content", "is_suitable"),
    [
        (SINGLES, lambda size, _: 1 <= size / len(SINGLES) < 1.001),  # stored: zlib's 7 % cost a minute a GB
        (HALVES, lambda size, by_zlib: size < 1.01 * by_zlib < 0.9 * len(HALVES)),
        (TEXT, lambda size, by_zlib: size < 1.05 * by_zlib),
        (bytes(1 << 20), lambda size, by_zlib: size < 1.05 * by_zlib + 64),
    ],
    ids=["float32", "bfloat16", "text", "zeros"],
)
def test_what_shrinks_shrinks_as_by_zlib_and_the_rest_is_stored(
    content: bytes, is_suitable: Callable[[int, int], bool]
) -> None:
    size, by_zlib = len(packed(content)), len(gzip.compress(content, 1))
    assert is_suitable(size, by_zlib), (size, by_zlib, len(content))


def test_the_program_tar_reads_it(tmp_path: Path) -> None:
    with (
        (tmp_path / "model.tar.gz").open("wb") as target,
        fast_gzip(target) as stream,
        tarfile.TarFile(fileobj=stream, mode="w") as bundle,
    ):
        for name, content in (("weights", SINGLES * 9), ("notes", TEXT)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
    subprocess.run(["gzip", "--test", "model.tar.gz"], cwd=tmp_path, check=True)
    subprocess.run(["tar", "-xzf", "model.tar.gz"], cwd=tmp_path, check=True)
    assert (tmp_path / "weights").read_bytes() == SINGLES * 9
    assert (tmp_path / "notes").read_bytes() == TEXT
