"""On SageMaker the platform copies the checkpoints: a stop waits until its checkpoint is in S3, and says where."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker
from smddp.checkpoint import list_checkpoints

Build = Callable[..., Estimator]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interruption_ends_with_the_checkpoint_in_s3_and_is_resumed(
    estimator: Build, platform: LocalSageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{platform.default_bucket}/trains-{time.time_ns()}"
    job = estimator(
        "trains.py",
        hyperparameters={"wait_at": 60},
        use_spot_instances=True,
        max_run=200,
        max_wait=400,
        checkpoint_s3_uri=place,
    ).fit(wait=False)
    for _host, line in job.logs():
        if "step=60 " in line:
            platform.interrupt(job.name)
            break
    job.wait()
    log = "\n".join(line for _host, line in job.logs())
    stopped = re.search(rf"stopped at step (\d+), in epoch 1: the checkpoint is {place}/step-(\d{{12}})", log)
    assert stopped is not None, log
    assert int(stopped[1]) == int(stopped[2])
    assert f"resumed at step {stopped[1]}, in epoch 1" in log
    assert "has not arrived" not in log
    assert [text.get_text() for text in job.plot("loss").axes[0].texts] == ["attempt 2"]
    for name, value in platform.environment.items():
        monkeypatch.setenv(name, value)
    assert [(found.step, found.status) for found in list_checkpoints(place)][-1] == (150, "valid")
