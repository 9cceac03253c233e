from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from smddp.training import stop_deadline
from smddp.training.stop_deadline import seconds_left

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a scontrol that prints such a job, and such a KillWait, first in PATH."""

    def write(job: str, wait: str) -> None:
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\n[ \"$2\" = job ] && echo '{job}' || echo '{wait}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(stop_deadline, "_ANSWER_SECONDS", 60.0)

    return write


def test_a_job_that_still_runs_has_until_its_end(scontrol) -> None:
    end = (datetime.now() + timedelta(seconds=100)).isoformat(timespec="seconds")
    scontrol(f"JobId=7 JobState=RUNNING EndTime={end}", "KillWait = 30 sec")
    assert seconds_left(JOB, since=50.0) == pytest.approx(100, abs=30)


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PREEMPTED"])
def test_one_that_was_cancelled_has_the_clusters_wait(scontrol, state: str) -> None:
    scontrol(f"JobState={state} EndTime=2026-01-01T00:00:00", "KillWait                = 30 sec")
    assert seconds_left(JOB, since=5.0) == 25.0


@pytest.mark.parametrize(("job", "wait"), [("JobState=RUNNING EndTime=Unknown", ""), ("", ""), ("JobState=X", "what")])
def test_what_slurm_does_not_say_is_not_known(scontrol, job: str, wait: str) -> None:
    scontrol(job, wait)
    assert seconds_left(JOB, since=0.0) is None


def test_outside_of_slurm_nothing_is_asked(scontrol) -> None:
    scontrol("JobState=COMPLETING", "KillWait = 30 sec")
    assert seconds_left({}, since=0.0) is None
