"""Records of tar files: those that tarfile and GNU tar write, and those that nobody should believe."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smddp.data.formats.tar import TarReader
from smddp.data.shards import RawRecord
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import Body, tar_bytes

TWO = [("a.txt", b"first"), ("a.cls", b"1"), ("b.txt", b"second"), ("b.cls", b"2")]


def reader_of(content: bytes, *, is_pipe: bool = False, **options: int) -> TarReader:
    if is_pipe:
        return TarReader(Body(content), name="shard.tar", **options)  # type: ignore[arg-type]
    return TarReader(io.BytesIO(content), name="shard.tar", size=len(content), **options)


def read_all(content: bytes, *, is_pipe: bool = False, **options: int) -> list[RawRecord]:
    reader = reader_of(content, is_pipe=is_pipe, **options)
    with contextlib.closing(reader):
        return list(iter(reader.read, None))  # type: ignore[arg-type]


def fields(records: list[RawRecord]) -> list[dict[str, object]]:
    return [record.parse() for record in records]


@pytest.mark.parametrize("is_pipe", [False, True])
@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_neighbours_with_the_same_stem_are_a_record(style: int, is_pipe: bool) -> None:
    records = read_all(tar_bytes(TWO, style=style), is_pipe=is_pipe)
    assert fields(records) == [
        {"__key__": "a", "txt": b"first", "cls": b"1"},
        {"__key__": "b", "txt": b"second", "cls": b"2"},
    ]
    assert [(record.shard, record.number, record.offset) for record in records] == [
        ("shard.tar", 0, 0),
        ("shard.tar", 1, 2048),
    ]


@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_reads_long_names_and_names_of_all_tongues(style: int) -> None:
    directory = "d/" * 150
    members = [(f"{directory}größe-写真.seg.PNG", b"1"), (f"{directory}größe-写真.jpg", b"2"), ("short.jpg", b"3")]
    assert fields(read_all(tar_bytes(members, style=style))) == [
        {"__key__": f"{directory}größe-写真", "seg.png": b"1", "jpg": b"2"},
        {"__key__": "short", "jpg": b"3"},
    ]


def test_reads_a_prefix_of_ustar() -> None:
    name = "/".join(["directory" * 5] * 3) + "/a.jpg"
    assert fields(read_all(tar_bytes([(name, b"1")]))) == [{"__key__": name[:-4], "jpg": b"1"}]


def test_reads_what_gnu_tar_writes(tmp_path: Path) -> None:
    for name, content in [*TWO, ("sub.d/c.txt", b"x" * 1000)]:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    subprocess.run(["tar", "--sort=name", "-cf", tmp_path / "out.tar", "-C", tmp_path / "in", "."], check=True)
    assert fields(read_all((tmp_path / "out.tar").read_bytes())) == [
        {"__key__": "./a", "cls": b"1", "txt": b"first"},
        {"__key__": "./b", "cls": b"2", "txt": b"second"},
        {"__key__": "./sub.d/c", "txt": b"x" * 1000},
    ]


def test_leaves_out_what_belongs_to_no_record() -> None:
    names = ["README", ".DS_Store", "dir/._a.jpg", "__meta__/x.json", "a.jpg", "dir.d/none"]
    assert fields(read_all(tar_bytes((name, b"12345") for name in names))) == [{"__key__": "a", "jpg": b"12345"}]


def test_archives_may_follow_each_other() -> None:
    content = tar_bytes(TWO) + tar_bytes([("b.txt", b"another"), ("c.txt", b"third")])
    for is_pipe in (False, True):
        assert [record.parse()["__key__"] for record in read_all(content, is_pipe=is_pipe)] == ["a", "b", "b", "c"]


@pytest.mark.parametrize("is_pipe", [False, True])
def test_reading_may_begin_at_any_record_and_pass_over_some(is_pipe: bool) -> None:
    content = tar_bytes((f"{number}.bin", bytes([number]) * number * 100) for number in range(20))
    for start in read_all(content):
        body = content[start.offset :]
        options = {"offset": start.offset, "number": start.number}
        reader = (
            TarReader(Body(body), name="shard.tar", **options)  # type: ignore[arg-type]
            if is_pipe
            else TarReader(io.BytesIO(body), name="shard.tar", size=len(content), **options)
        )
        seen = []
        while (offset := reader.skip()) is not None:
            seen.append((reader.number - 1, offset))
            if (record := reader.read()) is not None:
                assert record.parse()["bin"] == bytes([record.number]) * record.number * 100
                seen.append((record.number, record.offset))
        assert seen == [(record.number, record.offset) for record in read_all(content)[start.number :]]


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_an_archive_that_is_cut_anywhere_is_never_taken_for_whole(data: st.DataObject) -> None:
    content = tar_bytes(TWO, style=data.draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])))
    end = 8 * 512  # behind it there are but zeros
    cut = data.draw(st.integers(0, end - 1))
    is_pipe = data.draw(st.booleans())
    reader = reader_of(content[:cut], is_pipe=is_pipe)
    if cut % 1024:  # within a member: each is a header and a block
        with pytest.raises(DataError, match=r"shard.tar, record \d at byte \d+: the archive is cut"):
            list(iter(reader.read, None))  # type: ignore[arg-type]
    else:
        list(iter(reader.read, None))  # type: ignore[arg-type]
        assert not reader.is_complete


def test_an_archive_with_its_end_is_complete() -> None:
    reader = reader_of(tar_bytes(TWO))
    while reader.skip() is not None:
        pass
    assert reader.is_complete


@settings(deadline=None, max_examples=200)
@given(content=st.binary(max_size=3000), start=st.integers(0, 4000))
def test_any_bytes_are_records_or_a_data_error(content: bytes, start: int) -> None:
    whole = tar_bytes(TWO, style=tarfile.PAX_FORMAT)
    with contextlib.suppress(DataError):
        read_all(whole[:start] + content + whole[start + len(content) :])


def test_a_flipped_bit_in_a_header_is_noticed() -> None:
    content = bytearray(tar_bytes(TWO))
    for byte in (0, 124, 148, 156, 400):
        content[1024 + byte] ^= 1
        with pytest.raises(DataError, match=r"record 0 at byte 1024: .* it anew"):
            read_all(bytes(content))
        content[1024 + byte] ^= 1


def with_header(size: int = 0, kind: bytes = b"0", name: str = "a.jpg", pax: dict[str, str] | None = None) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    member.pax_headers = pax or {}
    return member.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.LNKTYPE, "a.jpg is a hard link; .*--dereference"),
        (tarfile.SYMTYPE, "a.jpg is a symbolic link; .*--dereference"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file; pack it without --sparse"),
        (b"Z", "of the unknown type b'Z'"),
    ],
)
def test_refuses_what_is_no_plain_file(kind: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"shard.tar, record 0 at byte 0: .*{message}"):
        read_all(with_header(kind=kind) + bytes(1024), is_pipe=True)


def test_refuses_a_sparse_file_of_pax() -> None:
    with pytest.raises(DataError, match="a sparse file"):
        read_all(with_header(pax={"GNU.sparse.major": "1"}) + bytes(1024))


@pytest.mark.parametrize("is_pipe", [False, True])
def test_an_absurd_size_takes_no_memory(is_pipe: bool) -> None:
    for size in (2**40, 2**62):
        with pytest.raises(DataError, match="more than 268435456 bytes" if is_pipe else "the archive is cut"):
            read_all(with_header(size=size) + bytes(1024), is_pipe=is_pipe)


def test_a_size_of_pax_that_is_none_is_refused() -> None:
    for size in ("-1", "1e3", "9" * 30, "\u0661"):
        with pytest.raises(DataError, match=r"the size of 'a\.jpg' is"):
            read_all(with_header(pax={"size": size}) + bytes(1024), is_pipe=True)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_an_absurd_name_takes_no_memory(kind: bytes) -> None:
    with pytest.raises(DataError, match="a member's name and attributes have over 1048576 bytes"):
        read_all(with_header(size=2**22, kind=kind) + bytes(1024), is_pipe=True)


@pytest.mark.parametrize("body", [b"99 path=a.jpg\n", b"path=a.jpg\n", b"4 a=\n", b"10 path=a\nx", b"0 a=b\n"])
def test_damaged_pax_fields_are_refused(body: bytes) -> None:
    with pytest.raises(DataError, match="pax fields"):
        read_all(with_header(size=len(body), kind=b"x") + body.ljust(512, b"\0") + with_header() + bytes(1024))


def test_a_record_that_is_too_large_is_refused_also_when_it_is_passed_over() -> None:
    content = tar_bytes([("a.x", bytes(600)), ("a.y", bytes(600))])
    assert len(read_all(content, largest_record=1203)) == 1
    for is_pipe in (False, True):
        reader = reader_of(content, is_pipe=is_pipe, largest_record=1202)
        with pytest.raises(DataError, match="more than 1202 bytes, the most of a record; raise largest_record"):
            reader.skip()


def test_names_count_as_bytes_of_a_record() -> None:
    content = tar_bytes((f"a.{number:090}", b"") for number in range(12))
    assert len(read_all(content, largest_record=1081)) == 1
    with pytest.raises(DataError, match="its files and their names have more than 1080 bytes"):
        read_all(content, largest_record=1080)


def test_the_same_file_twice_in_a_record_is_refused() -> None:
    with pytest.raises(DataError, match=r"there is a second a\.jpg"):
        read_all(tar_bytes([("a.jpg", b"1"), ("a.JPG", b"2")]))


def test_closing_closes_the_file() -> None:
    body = Body(tar_bytes(TWO))
    reader = TarReader(body, name="shard.tar")  # type: ignore[arg-type]
    reader.read()
    reader.close()
    assert body.closed
