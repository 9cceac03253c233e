"""A function as a job: its arguments go there, and its result, or what it raises, comes back."""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from estimators import remote
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.local import LocalSageMaker
from estimators.remote_function import RemoteFunction
from tests.end_to_end.conftest import SCRIPTS


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import remote_functions  # type: ignore[import-not-found]

    return remote_functions


@pytest.fixture
def options(platform: LocalSageMaker) -> dict[str, Any]:
    return {
        "role": platform.role,
        "instance_type": "ml.g5.xlarge",
        "sagemaker_session": platform.session,
        "logs": False,
        "max_run": 120,
    }


@pytest.mark.slow
def test_tensors_come_to_each_rank_and_rank_0s_result_comes_back(
    functions: ModuleType, options: dict[str, Any]
) -> None:
    train = remote(functions.train, **options, instance_count=2, distribution="torchrun")
    config = functions.Config(0.5, [1, 2], Path("a/b"))
    job = train.submit(config, {"w": torch.ones(2, 3, dtype=torch.bfloat16)})
    result = job.result()
    assert type(result) is functions.Result
    assert (result.config, result.counts.tolist(), result.counts.dtype) == (config, [0, 0, 0], np.int16)
    assert torch.equal(result.weights["w"], torch.full((2, 3), 4, dtype=torch.bfloat16))
    assert math.isnan(result.losses[0])
    assert result.losses[1] == 2
    assert job.training_job.name.startswith("train-")
    assert train.attach(job.training_job.name).result().config == config


@pytest.mark.slow
def test_what_the_function_raises_comes_back_with_its_place(functions: ModuleType, options: dict[str, Any]) -> None:
    train = remote(functions.train, **options)
    with pytest.raises(TrainingJobFailed, match=r"ArithmeticError: lr=2 is too large") as failure:
        train(functions.Config(2, []), {})
    assert "remote_functions.py" in failure.value.reason
    assert "raise ArithmeticError(" in failure.value.reason


@pytest.mark.slow
def test_a_closure_is_pickled_if_asked_for_and_a_pickle_of_somebody_elses_is_not_loaded(
    functions: ModuleType, options: dict[str, Any], platform: LocalSageMaker, tmp_path: Path
) -> None:
    closure = functions.multiplier(complex(0, 2))
    multiply: RemoteFunction[..., Any] = remote(closure, **options, serializer="cloudpickle")
    job = multiply.submit(3 + 1j)
    assert job.result() == (-2 + 6j, "algo-1")

    marker = tmp_path / "loaded"
    replace_result(platform, job.training_job.describe(), cloudpickle.dumps(Touch(marker)))
    with pytest.raises(EstimatorError, match="the result is not the one that the job has written"):
        job.result()
    assert not marker.exists()
    with pytest.raises(EstimatorError, match=r"it has called .*multiply by cloudpickle, and"):
        multiply.options(serializer="safetensors").attach(job.training_job.name).result()


class Touch:
    """Makes a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def replace_result(platform: LocalSageMaker, description: Any, pickled: bytes) -> None:
    """Put another pickle into the archive of a job's output, whose signature stays."""
    s3 = platform.boto_session.client("s3")
    bucket, _, prefix = description["OutputDataConfig"]["S3OutputPath"].removeprefix("s3://").partition("/")
    key = f"{prefix.rstrip('/')}/{description['TrainingJobName']}/output/output.tar.gz".lstrip("/")
    content = io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    changed = io.BytesIO()
    with tarfile.open(fileobj=content) as old, tarfile.open(fileobj=changed, mode="w:gz") as new:
        for member in old.getmembers():
            data = old.extractfile(member)
            if data is None:
                continue
            body = pickled if member.name.endswith(".pickle") else data.read()
            member.size = len(body)
            new.addfile(member, io.BytesIO(body))
    s3.put_object(Bucket=bucket, Key=key, Body=changed.getvalue())
