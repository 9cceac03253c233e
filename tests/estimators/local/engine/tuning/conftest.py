"""Tuning requests, and training jobs that are over as soon as they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pytest

from estimators.local.engine.errors import invalid


@pytest.fixture
def make_request() -> Callable[..., dict[str, Any]]:
    """A CreateHyperParameterTuningJob for ``x`` from 0 to 10, with other members of its config or definition."""

    def make(*, config: Mapping[str, Any] = {}, definition: Mapping[str, Any] = {}, **members: Any) -> dict[str, Any]:
        return {
            "HyperParameterTuningJobName": "search",
            "HyperParameterTuningJobConfig": {
                "Strategy": "Random",
                "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
                "ResourceLimits": {"MaxNumberOfTrainingJobs": 4, "MaxParallelTrainingJobs": 2},
                "ParameterRanges": {"ContinuousParameterRanges": [{"Name": "x", "MinValue": "0", "MaxValue": "10"}]},
                "RandomSeed": 0,
                **config,
            },
            "TrainingJobDefinition": {
                "StaticHyperParameters": {"epochs": "3"},
                "AlgorithmSpecification": {
                    "TrainingImage": "image",
                    "TrainingInputMode": "File",
                    "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}],
                },
                "RoleArn": "arn:aws:iam::123456789012:role/training",
                "OutputDataConfig": {"S3OutputPath": "s3://bucket/output"},
                "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
                "StoppingCondition": {"MaxRuntimeInSeconds": 100},
                **definition,
            },
            **members,
        }

    return make


class Job:
    """A training job whose values of ``loss`` come one by one, each time that the tuning job looks at them."""

    def __init__(self, request: Mapping[str, Any], values: list[float], *, fails: bool, values_a_look: int) -> None:
        self.request = request
        self.name = request["TrainingJobName"]
        self.arn = f"arn:{self.name}"
        self.metrics = self
        self._values, self._shown, self._step = values, 0, values_a_look
        self._status = "Failed" if fails else "Completed"
        self.stopped = False

    @property
    def shown(self) -> tuple[float, ...]:
        return tuple(self._values[: self._shown])

    @property
    def ended(self) -> bool:
        return self.stopped or self._shown >= len(self._values)

    def history(self, _name: str) -> tuple[float, ...]:
        self._shown += 0 if self.ended else self._step
        return self.shown

    def last(self, _name: str) -> float | None:
        return self.shown[-1] if self.shown else None

    def stop(self) -> None:
        if self.ended:
            raise invalid("it has ended")
        self.stopped = True

    def update(self, members: Mapping[str, Any]) -> None:
        self.tuning_job = members["TuningJobArn"]

    def describe(self) -> dict[str, Any]:
        status = "Stopped" if self.stopped else self._status if self.ended else "InProgress"
        now = datetime.now(timezone.utc)
        return {
            "TrainingJobName": self.name,
            "TrainingJobArn": self.arn,
            "CreationTime": now,
            "TrainingJobStatus": status,
            **({"TrainingEndTime": now, "TrainingTimeInSeconds": 2} if self.ended else {}),
        }


class Jobs:
    """Starts them, and keeps count of how many run at a time."""

    def __init__(self, values: Callable[[dict[str, str]], list[float]], *, values_a_look: int = 1) -> None:
        self._values, self._step = values, values_a_look
        self.started: list[Job] = []
        self.most_at_a_time = 0
        self.failing: set[int] = set()

    def __call__(self, request: Mapping[str, Any]) -> Any:
        fails = len(self.started) in self.failing
        self.started.append(
            Job(request, self._values(request["HyperParameters"]), fails=fails, values_a_look=self._step)
        )
        self.most_at_a_time = max(self.most_at_a_time, sum(not job.ended for job in self.started))
        return self.started[-1]


@pytest.fixture
def make_jobs() -> Callable[..., Jobs]:
    return Jobs


@pytest.fixture
def distance() -> Callable[[dict[str, str]], list[float]]:
    """What a job comes to: how far its ``x`` is from 3, in one value."""
    return lambda hyperparameters: [abs(float(hyperparameters["x"]) - 3)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.local.engine.tuning.runner._LOOK_SECONDS", 0.001)
