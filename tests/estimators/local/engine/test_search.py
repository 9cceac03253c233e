"""Search: filters by dotted names, of text, numbers and times."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.listing import search_records


def job(name: str, lr: str, loss: float | None, day: int, team: str) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "TrainingJobStatus": "Completed",
        "HyperParameters": {"opt.lr": lr},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": day},
        "EnableManagedSpotTraining": day == 1,
        "CreationTime": datetime(2030, 1, day, tzinfo=timezone.utc),
        "LastModifiedTime": datetime(2030, 1, day, tzinfo=timezone.utc),
        "FinalMetricDataList": [] if loss is None else [{"MetricName": "loss", "Value": loss}],
        "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": f"s3://b/{name}"}}}],
        "Tags": [{"Key": "team", "Value": team}],
    }


JOBS = [job("one", "0.1", 0.5, 1, "red"), job("two", "0.01", 10.0, 2, "blue"), job("three", "0.5", None, 10, "red")]

COMPONENT = {
    "TrialComponentName": "made",
    "Parameters": {"opt.lr": {"NumberValue": 0.1}, "kind": {"StringValue": "adam"}},
    "Metrics": [{"MetricName": "f1", "Max": 4.0, "Last": 1.0}, {"MetricName": "f1.max", "Max": 9.0, "Last": 8.0}],
    "Parents": [{"TrialName": "a", "ExperimentName": "e"}, {"TrialName": "b", "ExperimentName": "e"}],
}


def search(request: dict[str, Any]) -> dict[str, Any]:
    return search_records({"TrainingJob": JOBS, "ExperimentTrialComponent": [COMPONENT]}.__getitem__, request)


def find(*filters: tuple[str, ...], **request: Any) -> list[str]:
    expression: dict[str, Any] = {
        "Filters": [dict(zip(("Name", "Operator", "Value"), condition, strict=False)) for condition in filters]
    }
    answer = search({"Resource": "TrainingJob", "SearchExpression": expression, **request})
    return [result["TrainingJob"]["TrainingJobName"] for result in answer["Results"]]


def test_without_an_expression_all_are_found_the_newest_first() -> None:
    answer = search({"Resource": "TrainingJob"})
    assert [result["TrainingJob"]["TrainingJobName"] for result in answer["Results"]] == ["three", "two", "one"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (("TrainingJobName", "Equals", "two"), ["two"]),
        (("TrainingJobName", "NotEquals", "two"), ["three", "one"]),
        (("TrainingJobName", "Contains", "o"), ["two", "one"]),
        (("TrainingJobName", "In", "one,two"), ["two", "one"]),
        (("HyperParameters.opt.lr", "GreaterThan", "0.05"), ["three", "one"]),
        (("ResourceConfig.InstanceCount", "LessThan", "10"), ["two", "one"]),
        (("ResourceConfig.InstanceType", "Contains", "m5"), ["three", "two", "one"]),
        (("Metrics.loss", "LessThanOrEqualTo", "0.5"), ["one"]),
        (("Metrics.loss", "NotExists"), ["three"]),
        (("Metrics.loss", "Exists"), ["two", "one"]),
        (("Tags.team", "Equals", "red"), ["three", "one"]),
        (("CreationTime", "GreaterThanOrEqualTo", "2030-01-02T00:00:00Z"), ["three", "two"]),
        (("EnableManagedSpotTraining", "Equals", "true"), ["one"]),
        (("NoSuchThing", "Equals", "x"), []),
        (("NoSuchThing", "NotEquals", "x"), ["three", "two", "one"]),
    ],
)
def test_a_filter(condition: tuple[str, ...], found: list[str]) -> None:
    assert find(condition) == found


@pytest.mark.parametrize(
    ("condition", "is_found"),
    [
        (("Parameters.opt.lr", "Equals", "0.1"), True),
        (("Parameters.kind", "Equals", "sgd"), False),
        (("Metrics.f1", "Equals", "1"), True),
        (("metrics.f1.MAX", "Equals", "4"), True),
        (("Metrics.f1.max.Max", "Equals", "9"), True),
        (("Metrics.f1.StdDev", "Exists", ""), False),
        (("Parents.TrialName", "Equals", "b"), True),
        (("Parents.TrialName", "NotEquals", "b"), False),
        (("parents.experimentname", "NotEquals", "b"), True),
        (("Parents.None", "NotExists", ""), True),
    ],
)
def test_a_filter_of_trial_components(condition: tuple[str, str, str], *, is_found: bool) -> None:
    filters = [dict(zip(("Name", "Operator", "Value"), condition, strict=True))]
    answer = search({"Resource": "ExperimentTrialComponent", "SearchExpression": {"Filters": filters}})
    assert [result["TrialComponent"] for result in answer["Results"]] == [COMPONENT] * is_found


def test_filters_are_joined_by_and_unless_or_is_asked() -> None:
    red_or_two = [
        {"Name": "Tags.team", "Value": "red"},
        {"Name": "TrainingJobName", "Value": "two"},
    ]
    request = {"Resource": "TrainingJob", "SearchExpression": {"Filters": red_or_two}}
    assert search(request)["Results"] == []
    request["SearchExpression"]["Operator"] = "Or"  # type: ignore[index]
    assert len(search(request)["Results"]) == 3


def test_expressions_nest() -> None:
    inner = {"Operator": "Or", "Filters": [{"Name": "TrainingJobName", "Value": name} for name in ("one", "two")]}
    nested = [
        {
            "NestedPropertyName": "InputDataConfig",
            "Filters": [
                {"Name": "InputDataConfig.ChannelName", "Value": "train"},
                {"Name": "InputDataConfig.DataSource.S3DataSource.S3Uri", "Operator": "Contains", "Value": "two"},
            ],
        }
    ]
    request = {"Resource": "TrainingJob", "SearchExpression": {"SubExpressions": [inner], "NestedFilters": nested}}
    assert [result["TrainingJob"]["TrainingJobName"] for result in search(request)["Results"]] == ["two"]


def test_results_are_sorted_and_paged() -> None:
    assert find(SortBy="Metrics", SortOrder="Ascending") == ["one", "three", "two"]
    answer = search({"Resource": "TrainingJob", "MaxResults": 2})
    rest = search({"Resource": "TrainingJob", "NextToken": answer["NextToken"]})
    assert [result["TrainingJob"]["TrainingJobName"] for result in rest["Results"]] == ["one"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"Resource": "Model"}, "has TrainingJob"),
        ({"SearchExpression": {"Filters": [{"Name": "TrainingJobName"}]}}, "needs a Value"),
        ({"SearchExpression": {"Filters": [{"Name": "CreationTime", "Value": "noon"}]}}, "is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said):
        search({"Resource": "TrainingJob"} | request_)
