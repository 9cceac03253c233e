"""What a FailureReason says."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from estimators.hosts.failure import Exit, algorithm_error, loss_of_hosts, tells_outcome
from estimators.hosts.opt_ml_tree import HostTree
from smddp.failure.report import LIMIT

LOST = Exit(code=137, lost="its container was killed from outside")


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    roots = {name: tmp_path / name for name in ("algo-1", "algo-2", "algo-3")}
    for root in roots.values():
        (root / "output").mkdir(parents=True)
    return roots


@pytest.fixture
def trees(roots: dict[str, Path]) -> dict[str, HostTree]:
    return {host: HostTree(root) for host, root in roots.items()}


def write(root: Path, text: str) -> None:
    (root / "output" / "failure").write_text(text)


TAILS = {"algo-1": "one\nlast of 1", "algo-2": "last of 2", "algo-3": ""}


def test_the_host_that_failed_first_is_heard(roots: dict[str, Path], trees: dict[str, HostTree]) -> None:
    write(roots["algo-1"], "ConnectionError: peer closed")
    write(roots["algo-2"], "ValueError: label 41\n")
    reason = algorithm_error({"algo-2": 3, "algo-1": 1}, trees, TAILS)
    assert reason == "AlgorithmError: ValueError: label 41, exit code: 3"


def test_a_host_that_ended_well_before_is_not_the_first_to_fail(
    roots: dict[str, Path], trees: dict[str, HostTree]
) -> None:
    write(roots["algo-3"], "wrong")
    assert algorithm_error({"algo-1": 0, "algo-3": 2}, trees, TAILS) == "AlgorithmError: wrong, exit code: 2"


def test_another_hosts_failure_is_better_than_none(roots: dict[str, Path], trees: dict[str, HostTree]) -> None:
    write(roots["algo-1"], "seen by 1")
    assert algorithm_error({"algo-2": 1, "algo-3": 1}, trees, TAILS) == "AlgorithmError: seen by 1, exit code: 1"


def test_without_a_failure_file_the_last_lines_speak(trees: dict[str, HostTree]) -> None:
    reason = algorithm_error({"algo-1": 137}, trees, TAILS)
    assert reason == (
        "AlgorithmError: algo-1 wrote no /opt/ml/output/failure; it printed: one\nlast of 1, exit code: 137"
    )
    assert algorithm_error({"algo-3": 1}, trees, TAILS) == (
        "AlgorithmError: algo-3 wrote no /opt/ml/output/failure, exit code: 1"
    )


def test_why_data_could_not_be_read_follows_what_the_program_made_of_it(
    roots: dict[str, Path], trees: dict[str, HostTree]
) -> None:
    write(roots["algo-1"], "OSError: [Errno 5] Input/output error")
    assert algorithm_error({"algo-1": 1}, trees, TAILS, "s3://bucket/key: there is no such object") == (
        "AlgorithmError: OSError: [Errno 5] Input/output error; s3://bucket/key: there is no such object, exit code: 1"
    )


def test_a_long_reason_keeps_its_beginning_its_end_and_the_exit_code(
    roots: dict[str, Path], trees: dict[str, HostTree]
) -> None:
    write(roots["algo-1"], "ValueError: " + "x" * 5000 + " in train.py")
    reason = algorithm_error({"algo-1": 1}, trees, TAILS)
    assert len(reason) == LIMIT
    assert reason.startswith("AlgorithmError: ValueError: xxx")
    assert reason.endswith("xxx in train.py, exit code: 1")


def test_a_reason_of_any_size_is_read_in_little_memory(roots: dict[str, Path], trees: dict[str, HostTree]) -> None:
    with (roots["algo-1"] / "output" / "failure").open("w") as file:
        file.write("ValueError: it begins" + "x" * 2000)
        file.truncate(64 << 20)  # with a hole, which has no blocks on the disk
        file.seek(0, os.SEEK_END)
        file.write("x" * 2000 + "it ends")
    tracemalloc.start()
    try:
        reason = algorithm_error({"algo-1": 1}, trees, TAILS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert reason.startswith("AlgorithmError: ValueError: it beginsxxx")
    assert reason.endswith("xxxit ends, exit code: 1")
    assert len(reason) == LIMIT


def test_bytes_that_are_no_text_do_no_harm(roots: dict[str, Path], trees: dict[str, HostTree]) -> None:
    (roots["algo-1"] / "output" / "failure").write_bytes(b"bad \xff byte")
    assert "bad \ufffd byte" in algorithm_error({"algo-1": 1}, trees, TAILS)


def test_a_loss_names_the_hosts_that_were_lost_and_not_those_that_failed_of_it() -> None:
    assert loss_of_hosts({"algo-1": Exit(code=1), "algo-2": LOST}) == (
        "InternalServerError: algo-2 was lost: its container was killed from outside."
    )
    assert loss_of_hosts({"algo-1": Exit(code=1), "algo-2": Exit(code=137)}) is None


@pytest.mark.parametrize("name", ["failure", "success"])
def test_a_program_that_wrote_its_outcome_told_it(
    roots: dict[str, Path], trees: dict[str, HostTree], name: str
) -> None:
    assert not tells_outcome(trees["algo-1"])
    (roots["algo-1"] / "output" / name).touch()
    assert tells_outcome(trees["algo-1"])
