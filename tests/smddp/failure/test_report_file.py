import errno
import os
from pathlib import Path

import pytest

from smddp.failure.report import LIMIT
from smddp.failure.report_file import find, forget, read, record, renew


def test_a_full_disk_leaves_no_part_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fill)
    with pytest.raises(OSError, match="No space"):
        record(tmp_path, "the reason")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_whole_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    record(tmp_path / "output", "first")
    record(tmp_path / "output", "second: ü")

    assert (tmp_path / "output" / "failure").read_text(encoding="utf-8") == "second: ü"
    assert [entry.name for entry in (tmp_path / "output").iterdir()] == ["failure"]

    found = find(tmp_path / "output")
    forget(tmp_path / "output", found)
    forget(tmp_path / "output", found)
    assert not list((tmp_path / "output").iterdir())


def test_what_is_read_of_a_long_report_is_its_beginning_and_its_end(tmp_path: Path) -> None:
    file = tmp_path / "failure"
    file.write_bytes(b"begins \xff" + b"\xf0\x9f\x98\x80" * 100_000 + b"ends\n")
    text = read(file)
    assert text.startswith("begins \ufffd" + "\U0001f600" * 1000)
    assert text.endswith("\U0001f600" * 1000 + "ends")
    assert len(text) < 3 * LIMIT


def test_only_a_file_is_a_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "failure")  # who read it would wait for ever
    assert find(tmp_path) is None


def test_a_report_that_begins_with_another_is_renewed_and_kept(tmp_path: Path) -> None:
    record(tmp_path, "the reason\nand what followed")
    os.utime(tmp_path / "failure", (0, 0))
    earlier = find(tmp_path)
    assert not renew(tmp_path, "and what followed") and find(tmp_path) == earlier
    assert renew(tmp_path, "the reason") and find(tmp_path) != earlier
    assert read(tmp_path / "failure") == "the reason\nand what followed"
    assert not renew(tmp_path / "absent", "the reason")
