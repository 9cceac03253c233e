from __future__ import annotations

import errno
from pathlib import Path

from smddp.container.outcome import report_failure, report_success


def test_what_a_rank_wrote_is_not_overwritten(tmp_path):
    report_failure(tmp_path / "output", "ours")
    report_failure(tmp_path / "output", "later")
    assert (tmp_path / "output" / "failure").read_text() == "ours"


def test_success_is_an_empty_file(tmp_path):
    report_success(tmp_path / "output")
    assert (tmp_path / "output" / "success").read_bytes() == b""


def test_bytes_that_are_no_text_do_not_hide_the_reason(tmp_path):
    report_failure(tmp_path / "output", "member 'a': it links to ../\udcff")
    assert (tmp_path / "output" / "failure").read_text(encoding="utf-8") == "member 'a': it links to ../\\udcff"


def test_a_failure_that_was_made_good_is_gone_after_success(tmp_path):
    report_failure(tmp_path, "of the round before")
    report_success(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["success"]


def test_on_a_full_disk_the_log_ends_with_the_jobs_own_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Path, "write_text", raise_no_space)
    report_failure(tmp_path / "output", "train.py ended with exit code 1: ValueError: boom\nTraceback")
    last = caplog.messages[-1]
    assert last.startswith(f"{tmp_path / 'output' / 'failure'} can't be written: the disk is full")
    assert last.endswith("The job failed: train.py ended with exit code 1: ValueError: boom")


def test_a_success_that_can_not_be_written_is_one(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Path, "touch", raise_no_space)
    report_success(tmp_path / "output")
    assert caplog.messages[-1].startswith("The job succeeded, but ")


def raise_no_space(path: Path, *_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
