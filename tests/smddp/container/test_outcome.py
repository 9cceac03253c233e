from __future__ import annotations

import errno
from pathlib import Path

from smddp.container.outcome import MAX_CHARACTERS, describe_failure, report_failure, report_success

ROOT = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad label 11
"""
PEER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(x)
RuntimeError: Connection closed by peer [127.0.0.1]:4242
"""


def describe(tail: str, *, code: int = 1, many: bool = False) -> str:
    return describe_failure("train.py", "algo-1", code, tail, many=many)


def test_of_many_ranks_the_first_exception_counts():
    reason = describe("step=1 loss=2\n" + ROOT + PEER + "Rank 1 ended with code 1.\n", many=True)
    assert reason.startswith("train.py ended with exit code 1 on algo-1: ValueError: bad label 11\nTraceback")
    assert "Connection closed" not in reason


def test_of_one_process_the_last_exception_counts_because_earlier_ones_were_caught():
    assert describe(PEER + "retrying\n" + ROOT).splitlines()[0].endswith(": ValueError: bad label 11")


def test_of_a_chain_the_exception_that_was_not_caught_counts():
    cause = "Traceback (most recent call last):\n  File 'a', line 1\nKeyError: 'x'\n"
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert describe(cause + link + ROOT, many=True).splitlines()[0].endswith(": ValueError: bad label 11")


def test_without_a_traceback_the_last_lines_are_given():
    reason = describe("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr 0.1\n", code=2)
    assert reason == (
        "train.py ended with exit code 2 on algo-1: train.py: error: unrecognized arguments: --lr 0.1\n"
        "usage: train.py [-h]"
    )


def test_warnings_and_rules_do_not_count_as_the_last_line():
    noise = "[W1121 08:00:00.0 socket.cpp:1] retry\nx.py:1: UserWarning: old\n-----\n"
    assert describe("----\nmpirun detected that one process failed\n" + noise).endswith(
        ": mpirun detected that one process failed"
    )


def test_a_silent_death_is_explained_by_its_signal():
    assert describe("", code=137) == (
        "train.py ended with exit code 137 (killed by SIGKILL, often because the host ran out of memory) on algo-1."
    )


def test_never_longer_than_what_the_service_keeps_and_the_error_comes_first():
    frames = "".join(f'  File "module_{number}.py", line {number}\n    call()\n' for number in range(200))
    reason = describe(f"Traceback (most recent call last):\n{frames}ValueError: boom\n")
    assert len(reason) == MAX_CHARACTERS
    assert reason.startswith("train.py ended with exit code 1 on algo-1: ValueError: boom\n...")
    assert reason.endswith('File "module_199.py", line 199\n    call()')
    assert len(describe("Traceback (most recent call last):\nValueError: " + "x" * 5000)) == MAX_CHARACTERS


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
