"""Scripts of Accelerate and transformers as they are: jobs of two hosts, with hyperparameters and a model."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker


@pytest.mark.slow
@pytest.mark.loops
@pytest.mark.parametrize(
    ("script", "hyperparameters"),
    [
        ("accelerate_loop.py", {"epochs": 2}),
        (
            "transformers_trainer.py",
            {
                "output_dir": "trainer",
                "num_train_epochs": 2,
                "per_device_train_batch_size": 8,
                "use_cpu": True,
                "save_strategy": "no",
                "report_to": "none",
            },
        ),
    ],
)
def test_it_runs_as_a_job_of_two_hosts_unchanged(
    script: str, hyperparameters: dict[str, object], estimator: Callable[..., Estimator], platform: LocalSageMaker
) -> None:
    job = estimator(script, instance_count=2, distribution="torchrun", hyperparameters=hyperparameters).fit(logs=False)
    told = {found[0] for _, line in job.logs() if (found := re.search(r"rank \d of \d: \d+ batches", line))}
    assert told == {f"rank {rank} of 2: 8 batches" for rank in (0, 1)}  # 64 samples, twice, by 8 on each of two
    bucket, _, key = job.model_data.removeprefix("s3://").partition("/")
    packed = platform.boto_session.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as model:
        assert "model.safetensors" in model.getnames()
