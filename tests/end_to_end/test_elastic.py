"""kill -9 in mid-epoch, and on with other numbers of hosts: every sample once; with the same number, the same bits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import pytest

from estimators import Estimator
from estimators.errors import TrainingJobFailed
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob

Build = Callable[..., Estimator]


class Life(NamedTuple):
    steps: dict[int, list[int]]
    """The samples of each step, over all ranks."""
    weights: str | None
    """Those at the end, where it came so far."""


@pytest.fixture
def live(estimator: Build) -> Callable[..., Life]:
    def run(place: str, *, hosts: int, die_at: int | None = None) -> Life:
        job = estimator(
            "elastic.py", instance_count=hosts, hyperparameters={"die_at": die_at}, checkpoint_s3_uri=place
        ).fit(wait=False)
        if die_at is None:
            job.wait()
        else:
            with pytest.raises(TrainingJobFailed, match="SIGKILL"):
                job.wait()
        return read(job)

    return run


def read(job: TrainingJob) -> Life:
    lines = [line for _host, line in job.logs()]
    steps: dict[int, list[int]] = {}
    for line in lines:
        if found := re.search(r"step (\d+) takes (\[.*\])", line):
            steps.setdefault(int(found[1]), []).extend(json.loads(found[2]))
    return Life(steps, next((line for line in lines if "weights" in line), None))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_hosts_are_killed_and_one_then_three_go_on(live: Callable[..., Life], platform: LocalSageMaker) -> None:
    bucket, now = platform.default_bucket, time.time_ns()
    place, again, undisturbed = (f"s3://{bucket}/{name}-{now}" for name in ("elastic", "again", "undisturbed"))
    lives = [live(place, hosts=2, die_at=5)]
    s3 = platform.boto_session.client("s3")
    for item in s3.list_objects_v2(Bucket=bucket, Prefix=f"elastic-{now}/")["Contents"]:
        source = {"Bucket": bucket, "Key": item["Key"]}
        s3.copy_object(Bucket=bucket, Key=item["Key"].replace("elastic", "again", 1), CopySource=source)
    lives += [live(place, hosts=1, die_at=8), live(place, hosts=3)]

    starts = [min(each.steps) for each in lives]
    assert starts[0] == 0 < starts[1] <= 5 < starts[2] <= 8  # none began anew
    taken = {step: samples for each in lives for step, samples in each.steps.items()}
    assert sorted(taken) == list(range(20))
    for epoch in range(2):
        samples = list(chain.from_iterable(taken[step] for step in range(10 * epoch, 10 * epoch + 10)))
        assert sorted(samples) == list(range(120))

    whole = live(undisturbed, hosts=2)
    resumed = live(again, hosts=2)
    assert min(resumed.steps) > 0
    assert whole.weights is not None
    assert resumed.weights == whole.weights
    assert {step: sorted(samples) for step, samples in whole.steps.items()} == {
        step: sorted(samples) for step, samples in taken.items()
    }
