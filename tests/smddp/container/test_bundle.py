"""The bundle of training code: nothing in it lands outside the code directory, and what is refused leaves nothing."""

from __future__ import annotations

import cProfile
import gzip
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from smddp.container import bundle as module
from smddp.container.bundle import unpack
from smddp.errors import SourceError
from tests.smddp.container.archives import archive


def fetch(bundle: Path, code: Path) -> None:
    code.mkdir(exist_ok=True)
    unpack(bundle, code, name=str(bundle))


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
    monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    bundle = archive(tmp_path / "b.tar.gz", ("a", {}), ("b", {}), ("c", {}))
    with pytest.raises(SourceError, match="member 'c': it is one more than the 2 members"):
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())


def test_refuses_too_many_bytes_by_what_the_headers_say(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
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
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())


@pytest.mark.parametrize("header", ["path", "linkpath"])
def test_refuses_a_name_that_no_file_can_have_before_anything_is_written(tmp_path, header):
    member = {"type": LINK, "linkname": "train.py", "pax_headers": {header: "a\0b"}}
    bundle = archive(tmp_path / "b.tar.gz", ("train.py", {}), ("a", member))
    with pytest.raises(SourceError, match="NUL"):
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())


def test_copies_of_hard_links_count(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    links = [(f"copy-{number}", {"type": HARD, "linkname": "a"}) for number in range(10)]
    bundle = archive(tmp_path / "b.tar.gz", ("a", {"data": b"x" * 400}), *links)
    with pytest.raises(SourceError, match="member 'copy-1': with it the archive unpacks to more than 1,000 bytes"):
        fetch(bundle, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())


def header(name: bytes, kind: bytes, size: bytes) -> bytes:
    """A block as no archiver writes it."""
    block = bytearray(tarfile.TarInfo("x").tobuf())
    block[: len(name)], block[124:136], block[156:157], block[148:156] = name, size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


PAX, LONG_NAME, LONG_LINK = tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
NEGATIVE = b"\xff" * 12


def gzipped(path: Path, *blocks: bytes, zeros: int = 1024) -> Path:
    with gzip.open(path, "wb", 1) as file:
        file.writelines(blocks)
        for _ in range(zeros // 2**20):
            file.write(bytes(2**20))
        file.write(bytes(zeros % 2**20))
    return path


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, PAX, LONG_NAME])
def test_refuses_a_size_below_nothing(tmp_path, kind):
    bundle = gzipped(tmp_path / "b.tar.gz", header(b"a", kind, NEGATIVE))
    with pytest.raises(SourceError, match="a number in the header is"):
        fetch(bundle, tmp_path / "code")


def test_refuses_a_size_below_nothing_in_pax_fields(tmp_path):
    bundle = archive(tmp_path / "b.tar.gz", ("a", {"data": b"x", "pax_headers": {"size": "-1000000"}}))
    with pytest.raises(SourceError, match="the size of 'a' is '-1000000'"):
        fetch(bundle, tmp_path / "code")


@pytest.mark.parametrize("kind", [PAX, tarfile.XGLTYPE, LONG_NAME, LONG_LINK])
def test_reads_no_header_into_memory_that_is_too_large_for_one(tmp_path, kind):
    size = 64 << 20
    bundle = gzipped(tmp_path / "b.tar.gz", header(b"a", kind, b"%011o\0" % size), zeros=size)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="name and attributes have over"):
            fetch(bundle, tmp_path / "code")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_refuses_headers_upon_headers(tmp_path):
    blocks = (header(b"a", PAX, b"%011o\0" % 512) + b"511 comment=" + bytes(510 - 12) + b"\n\0") * 4000
    with pytest.raises(SourceError, match="can't be unpacked"):
        fetch(gzipped(tmp_path / "b.tar.gz", blocks), tmp_path / "code")


def test_refuses_an_end_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    monkeypatch.setattr(module, "MAX_MEMBERS", 10)
    with pytest.raises(SourceError, match="it unpacks to more than 41,960 bytes"):
        fetch(gzipped(tmp_path / "b.tar.gz", zeros=1 << 20), tmp_path / "code")


def test_refuses_a_name_that_is_too_long(tmp_path):
    bundle = archive(tmp_path / "b.tar.gz", ("/".join(["d"] * 600), {}))
    with pytest.raises(SourceError, match="1,199 bytes; 1,024 are allowed"):
        fetch(bundle, tmp_path / "code")


def test_unpacks_directories_as_deep_as_a_name_may_be(tmp_path):
    name = "/".join(["d"] * 512)
    fetch(archive(tmp_path / "b.tar.gz", (name, {"data": b"x"})), tmp_path / "code")
    assert (tmp_path / "code" / name).read_bytes() == b"x"


def test_links_to_each_other_lead_nowhere(tmp_path):
    loop = [("a", {"type": LINK, "linkname": "b"}), ("b", {"type": LINK, "linkname": "a/x"})]
    fetch(archive(tmp_path / "loop.tar.gz", *loop), tmp_path / "loop")
    assert (tmp_path / "loop" / "a").is_symlink()


def chain(path: Path, links: int) -> Path:
    """Links of which each leads to the next, the last one to a file."""
    members = [(f"l{number}", {"type": LINK, "linkname": f"l{number + 1}"}) for number in range(links)]
    return archive(path, *members, (f"l{links}", {"data": b"x"}))


def test_a_link_leads_through_as_many_as_linux_follows(tmp_path):
    fetch(chain(tmp_path / "b.tar.gz", 40), tmp_path / "code")
    assert (tmp_path / "code" / "l0").read_bytes() == b"x"
    with pytest.raises(SourceError, match=r"member 'l0': it leads through more than 40 links"):
        fetch(chain(tmp_path / "b.tar.gz", 41), tmp_path / "longer")
    assert not list((tmp_path / "longer").iterdir())


def test_links_that_lead_through_each_other_many_times_are_refused(tmp_path):
    tree = [(f"l{number}", {"type": LINK, "linkname": f"l{number + 1}/../l{number + 1}"}) for number in range(30)]
    with pytest.raises(SourceError, match="it leads through more than 40 links"):
        fetch(archive(tmp_path / "b.tar.gz", *tree, ("l30/file", {})), tmp_path / "code")


def test_a_link_behind_others_is_no_more_work_than_any(tmp_path):
    def calls(name: str, *members: tuple[str, str]) -> int:
        """How many functions are called to unpack links."""
        bundle = archive(tmp_path / f"{name}.tar.gz", *[(m, {"type": LINK, "linkname": to}) for m, to in members])
        profile = cProfile.Profile()
        profile.runcall(fetch, bundle, tmp_path / name)
        return sum(entry.callcount for entry in profile.getstats())

    names = [(f"{chain}-{link}", f"{chain}-{link + 1}") for chain in range(5) for link in range(40)]
    assert calls("chains", *names) < 1.3 * calls("straight", *[(name, f"to-{name}") for name, _ in names])


def test_links_that_lead_to_each_other_say_no_way_out_either(tmp_path):
    loop = [("a", {"type": LINK, "linkname": "b"}), ("b", {"type": LINK, "linkname": "a/../../x"})]
    with pytest.raises(SourceError, match=r"member 'b': it links to a/\.\./\.\./x, outside"):
        fetch(archive(tmp_path / "b.tar.gz", *loop), tmp_path / "code")


def test_of_two_members_with_one_name_the_last_counts(tmp_path):
    bundle = archive(
        tmp_path / "b.tar.gz",
        ("a", {"data": b"first"}),
        ("b", {"type": LINK, "linkname": "a"}),
        ("a", {"type": LINK, "linkname": "b"}),
        ("b", {"data": b"last"}),
    )
    fetch(bundle, tmp_path / "code")
    assert (tmp_path / "code" / "a").read_text() == "last"
    assert (tmp_path / "code" / "a").is_symlink()


def test_what_the_image_brings_stays_until_a_bundle_is_whole(tmp_path):
    code = tmp_path / "code"
    (code / "lib").mkdir(parents=True)
    (code / "lib" / "old.py").write_text("old")
    (code / "train.py").write_text("old")
    new = [("train.py", {"data": b"new"}), ("lib/new.py", {"data": b"new"})]
    bad = archive(tmp_path / "bad.tar.gz", *[(n, dict(f)) for n, f in new], ("../evil.py", {}))
    with pytest.raises(SourceError):
        fetch(bad, code)
    assert (code / "train.py").read_text() == "old"
    assert sorted(path.name for path in code.rglob("*")) == ["lib", "old.py", "train.py"]
    fetch(archive(tmp_path / "good.tar.gz", *new), code)
    assert (code / "train.py").read_text() == "new"
    assert sorted(path.name for path in code.rglob("*")) == ["lib", "new.py", "old.py", "train.py"]


@pytest.mark.parametrize(
    ("there", "sent", "named", "problem"),
    [
        ("b/old.py", "b", "b", "the directory has a directory there"),
        ("b", "b/new.py", "b", "the directory has a file there"),
        ("lib/b/old.py", "lib/b", "lib/b", "the directory has a directory there"),
    ],
)
def test_what_can_not_take_the_place_of_what_is_there_is_refused_before_anything_is_moved(
    tmp_path, there, sent, named, problem
):
    code = tmp_path / "code"
    (code / there).parent.mkdir(parents=True)
    (code / there).write_text("old")
    before = sorted(code.rglob("*"))
    bundle = archive(tmp_path / "b.tar.gz", ("a", {"data": b"new"}), (sent, {"data": b"new"}))
    with pytest.raises(SourceError, match=rf"member '{named}': it is a (file|directory), and {problem}") as error:
        fetch(bundle, code)
    assert ".unpacking-" not in str(error.value)
    assert sorted(code.rglob("*")) == before
