from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.local_mode.containers import End
from estimators.local_mode.directory import Outcome
from estimators.local_mode.job_outcome import job_outcome


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    roots = {"algo-1": tmp_path / "1", "algo-2": tmp_path / "2"}
    for root in roots.values():
        (root / "output").mkdir(parents=True)

    def of(*codes: tuple[str, int], **known: Any) -> Outcome:
        short = known.pop("out_of_memory", ())
        ends = [
            End(host=host, code=code, at=str(number), out_of_memory=host in short)
            for number, (host, code) in enumerate(codes)
        ]
        tails = dict.fromkeys(roots, "last words")
        usual: dict[str, Any] = {"told": (), "asked": False, "left": (), "compose_code": 0, "compose_said": ""}
        return job_outcome(ends, roots=roots, tails=tails, **{**usual, **known})

    of.roots = roots  # type: ignore[attr-defined]
    return of


def test_a_job_is_completed_when_all_hosts_are(judge: Any) -> None:
    assert judge(("algo-2", 0), ("algo-1", 0)) == Outcome(status="Completed", host=None, reason="")


def test_hosts_that_only_served_the_first_may_be_ended(judge: Any) -> None:
    assert judge(("algo-1", 0), ("algo-2", 143), told={"algo-2"}).status == "Completed"


def test_the_first_host_that_failed_by_itself_says_why(judge: Any) -> None:
    for host, root in judge.roots.items():
        (root / "output" / "failure").write_text(f"{host} says why")
    outcome = judge(("algo-2", 3), ("algo-1", 143), told={"algo-1"}, compose_code=1)
    assert outcome == Outcome(status="Failed", host="algo-2", reason="AlgorithmError: algo-2 says why, exit code: 3")


def test_a_host_without_a_failure_file_is_quoted(judge: Any) -> None:
    outcome = judge(("algo-1", 9), ("algo-2", 0), told={"algo-2"})
    assert (
        outcome.reason == "AlgorithmError: algo-1 wrote no /opt/ml/output/failure; it printed: last words, exit code: 9"
    )


def test_a_host_that_was_killed_is_the_reason_and_not_who_missed_it_first(judge: Any) -> None:
    (judge.roots["algo-1"] / "output" / "failure").write_text("Connection closed by peer")
    outcome = judge(("algo-1", 1), ("algo-2", 137))
    assert (outcome.status, outcome.host) == ("Failed", "algo-2")
    assert outcome.reason.startswith("InternalServerError: algo-2 was lost: its container ended with 137")


def test_a_host_without_memory_is_the_reason_and_says_so(judge: Any) -> None:
    (judge.roots["algo-1"] / "output" / "failure").write_text("Connection closed by peer")
    outcome = judge(("algo-1", 1), ("algo-2", 137), out_of_memory={"algo-2"})
    assert outcome.host == "algo-2"
    assert outcome.reason.endswith("it printed: last words; the machine had no memory left for it, exit code: 137")


def test_who_wrote_why_it_ended_with_137_was_not_lost(judge: Any) -> None:
    (judge.roots["algo-2"] / "output" / "failure").write_text("mine")
    assert judge(("algo-2", 137), ("algo-1", 1)).reason == "AlgorithmError: mine, exit code: 137"


def test_ctrl_c_is_a_stop_and_not_a_failure(judge: Any) -> None:
    outcome = judge(("algo-1", 75), ("algo-2", 137), told={"algo-1", "algo-2"}, asked=True)
    assert outcome.status == "Stopped"
    assert "Ctrl-C" in outcome.reason


def test_ctrl_c_after_a_failure_does_not_hide_it(judge: Any) -> None:
    outcome = judge(("algo-1", 1), ("algo-2", 137), told={"algo-2"}, asked=True)
    assert (outcome.status, outcome.host) == ("Failed", "algo-1")


def test_ctrl_c_after_the_end_changes_nothing(judge: Any) -> None:
    assert judge(("algo-1", 0), ("algo-2", 0), asked=True).status == "Completed"


def test_a_stop_from_outside_is_a_stop_if_all_saved_their_work(judge: Any) -> None:
    assert judge(("algo-1", 75), ("algo-2", 75)).status == "Stopped"
    assert judge(("algo-1", 75), ("algo-2", 1)).status == "Failed"


def test_hosts_that_never_ran_are_composes_failure(judge: Any) -> None:
    outcome = judge(compose_code=1, compose_said="pull access denied for mine")
    assert outcome == Outcome(
        status="Failed", host=None, reason="Docker Compose could not start it: pull access denied for mine"
    )
    assert judge(("algo-1", 0), compose_code=1, compose_said="no such program").status == "Failed"


def test_hosts_that_outlived_compose_are_its_failure_and_not_theirs(judge: Any) -> None:
    told = {"algo-1", "algo-2"}
    ends = (("algo-1", 75), ("algo-2", 75))
    outcome = judge(*ends, told=told, left=["algo-1", "algo-2"], compose_code=3, compose_said="read timeout")
    assert (outcome.status, outcome.host) == ("Failed", None)
    assert outcome.reason == (
        "Docker Compose ended with 3 while algo-1, algo-2 ran, and had to be told to stop; it said: read timeout"
    )
    assert judge(*ends, told=told, left=["algo-1"], asked=True).status == "Stopped"
    assert judge(("algo-1", 0), ("algo-2", 0), told=told, left=["algo-1"]).status == "Completed"
    assert judge(("algo-2", 3), ("algo-1", 75), told=["algo-1"], left=["algo-1"]).host == "algo-2"


def test_ctrl_c_before_all_hosts_ran_is_a_stop(judge: Any) -> None:
    assert judge(asked=True, compose_code=1).status == "Stopped"
