"""The short forms of what `make torture` does to a platform with many jobs, stops and requests."""

from __future__ import annotations

import pytest

from estimators.local import LocalSageMaker
from tests.torture.many_jobs import run_at_once
from tests.torture.request_fuzz import fuzz
from tests.torture.stop_races import race_stops


@pytest.mark.slow
def test_jobs_at_once_are_completed_with_all_lines_of_their_logs(platform: LocalSageMaker) -> None:
    assert run_at_once(platform, jobs=3).failures == ()


def test_a_stop_that_races_the_end_leaves_a_job_completed_or_stopped(platform: LocalSageMaker) -> None:
    assert race_stops(platform, races=4, seed=1).failures == ()


def test_no_request_for_a_job_is_answered_with_500_or_not_at_all(platform: LocalSageMaker) -> None:
    assert fuzz(platform, requests=60, seed=1).failures == ()
