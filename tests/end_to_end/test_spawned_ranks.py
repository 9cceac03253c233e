"""A driver that starts its own ranks, as mp.spawn does, in a job without distribution: on each of two hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from estimators import Estimator


@pytest.mark.slow
def test_the_ranks_that_each_host_starts_train_as_one_job(estimator: Callable[..., Estimator]) -> None:
    job = estimator("spawns.py", instance_count=2).fit()
    lines = "\n".join(line for _host, line in job.logs())
    taken = re.findall(r"rank (\d) on (\S+) takes (\[.*\])", lines)
    assert {(rank, host) for rank, host, _ in taken} == {
        ("0", "algo-1"),
        ("1", "algo-1"),
        ("2", "algo-2"),
        ("3", "algo-2"),
    }
    assert sorted(sample for *_, samples in taken for sample in json.loads(samples)) == list(range(24))
