from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

import pytest

import smddp.container.__main__ as program
from smddp.container.__main__ import await_names, report_failure, report_success
from smddp.errors import ClusterError


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


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(program, "RETRY_SECONDS", 0.02)


def test_returns_once_the_last_name_resolves(monkeypatch):
    tries = {"algo-1": 0, "algo-2": 0}

    def resolve(host, port):
        tries[host] += 1
        if host == "algo-2" and tries[host] < 4:
            raise socket.gaierror("not yet")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    await_names(["algo-1", "algo-2"], seconds=10)
    assert tries == {"algo-1": 1, "algo-2": 4}


def test_gives_up_after_the_bound_and_names_the_hosts(monkeypatch):
    def resolve(host, port):
        if host != "algo-1":
            raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ClusterError, match="The names of algo-2, algo-3 did not resolve"):
        await_names(["algo-1", "algo-2", "algo-3"], seconds=0.1)


def test_the_bound_holds_while_the_resolver_itself_hangs(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: time.sleep(60))
    start = time.monotonic()
    with pytest.raises(ClusterError):
        await_names(["algo-1"], seconds=0.1)
    assert time.monotonic() - start < 30
