"""What of a CreateHyperParameterTuningJob is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from estimators.local.engine.errors import ApiError
from estimators.local.engine.tuning.ranges import NumberRange
from estimators.local.engine.tuning.request import TuningRequest

CONTINUOUS = "ContinuousParameterRanges"
CRITERIA = "TuningJobCompletionCriteria"
LIMITS = {"MaxNumberOfTrainingJobs": 4, "MaxParallelTrainingJobs": 2}
INTEGER = "IntegerParameterRanges"


def ranges(**members: Any) -> dict[str, Any]:
    return {"ParameterRanges": {CONTINUOUS: [{"Name": "x", "MinValue": "0.1", "MaxValue": "0.9", **members}]}}


def test_a_training_job_has_its_own_and_the_common_hyperparameters(make_request: Callable[..., dict[str, Any]]) -> None:
    request = TuningRequest.parse(make_request(Tags=[{"Key": "team", "Value": "vision"}]))
    job = request.training_job("search-001-abcdef01", {"x": "2.5"})
    assert job["HyperParameters"] == {"epochs": "3", "x": "2.5", "_tuning_objective_metric": "loss"}
    assert job["TrainingJobName"] == "search-001-abcdef01"
    assert job["Tags"] == [{"Key": "team", "Value": "vision"}]
    assert "StaticHyperParameters" not in job


def test_each_training_job_has_its_own_checkpoints(make_request: Callable[..., dict[str, Any]]) -> None:
    request = TuningRequest.parse(make_request(definition={"CheckpointConfig": {"S3Uri": "s3://bucket/saved/"}}))
    assert request.training_job("search-001-a", {})["CheckpointConfig"] == {"S3Uri": "s3://bucket/saved/search-001-a"}


def test_of_several_instance_types_the_first_is_taken(make_request: Callable[..., dict[str, Any]]) -> None:
    given = make_request()
    del given["TrainingJobDefinition"]["ResourceConfig"]
    types = ["ml.m5.large", "ml.m5.xlarge"]
    given["TrainingJobDefinition"]["HyperParameterTuningResourceConfig"] = {
        "AllocationStrategy": "Prioritized",
        "InstanceConfigs": [{"InstanceType": kind, "InstanceCount": 2, "VolumeSizeInGB": 3} for kind in types],
    }
    job = TuningRequest.parse(given).training_job("a", {})
    assert job["ResourceConfig"] == {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 3}


@pytest.mark.parametrize(
    ("least", "most", "scaling"),
    [("0.001", "1", "Logarithmic"), ("0.01", "1", "Linear"), ("0", "100000", "Linear")],
)
def test_auto_is_logarithmic_where_the_range_is_wide(
    make_request: Callable[..., dict[str, Any]], least: str, most: str, scaling: str
) -> None:
    (found,) = TuningRequest.parse(make_request(config=ranges(MinValue=least, MaxValue=most))).ranges
    assert isinstance(found, NumberRange)
    assert found.scaling == scaling


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": {"ParameterRanges": {}}}, "no range"),
        ({"config": ranges(MinValue="a")}, "give numbers"),
        ({"config": ranges(MinValue="nan")}, "must be finite numbers"),
        ({"config": ranges(MinValue="-inf", MaxValue="inf")}, "from -inf to inf; .* must be finite numbers"),
        ({"config": ranges(MinValue="-1e308", MaxValue="1e308")}, "and their difference must be finite numbers"),
        (
            {"config": {"ParameterRanges": {INTEGER: [{"Name": "x", "MinValue": "0", "MaxValue": "9" * 250}]}}},
            "must be whole numbers of 64 bits",
        ),
        ({"config": ranges(MinValue="0.9")}, "must be the smaller"),
        ({"config": ranges(MinValue="0", ScalingType="Logarithmic")}, "must be > 0"),
        ({"config": ranges(MaxValue="1", ScalingType="ReverseLogarithmic")}, "within 0 <= x < 1"),
        ({"config": ranges(Name="epochs")}, "epochs comes more than once, or is in StaticHyperParameters"),
        ({"config": {"ParameterRanges": {"AutoParameters": [{"Name": "x", "ValueHint": "1"}]}}}, "AutoParameters"),
        ({"config": {"ResourceLimits": {"MaxParallelTrainingJobs": 1}}}, "never ends by itself"),
        ({"config": {"Strategy": "Grid"}}, "Grid takes categorical ranges alone; x has numbers"),
        (
            {"config": {"HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "accuracy"}}},
            "accuracy is none of the MetricDefinitions of AlgorithmSpecification, which are loss",
        ),
        ({"config": {"Strategy": "Hyperband"}, "definition": {"StaticHyperParameters": {}}}, "MaxResource None"),
        (
            {
                "config": {
                    "Strategy": "Hyperband",
                    "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}},
                    "TrainingJobEarlyStoppingType": "Auto",
                }
            },
            "Hyperband stops training jobs by itself",
        ),
        ({"config": {CRITERIA: {"ConvergenceDetected": {"CompleteOnConvergence": "Enabled"}}}}, "BestObjectiveNotImp"),
        ({"Autotune": {"Mode": "Enabled"}}, "Autotune is not offered"),
        ({"definition": {"StoppingCondition": {"MaxRuntimeInSeconds": 10**9}}}, "MaxRuntimeInSeconds"),
        ({"definition": {"OutputDataConfig": {"S3OutputPath": "bucket"}}}, "S3OutputPath"),
    ],
)
def test_what_can_not_be_searched_is_refused(
    make_request: Callable[..., dict[str, Any]], changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        TuningRequest.parse(make_request(**changed))
    assert refused.value.code == "ValidationException"


def test_a_grid_has_as_many_jobs_as_points(make_request: Callable[..., dict[str, Any]]) -> None:
    values = [{"Name": "a", "Values": ["1", "2"]}, {"Name": "b", "Values": ["x", "y", "z"]}]
    config = {"Strategy": "Grid", "ParameterRanges": {"CategoricalParameterRanges": values}}
    limits = {"MaxParallelTrainingJobs": 2}
    assert TuningRequest.parse(make_request(config={**config, "ResourceLimits": limits})).most_jobs == 6
    with pytest.raises(ApiError, match="MaxNumberOfTrainingJobs is 4; the grid has 6 points"):
        TuningRequest.parse(make_request(config={**config, "ResourceLimits": LIMITS}))
