"""The statistics of a metric: of all values, and of each second in CloudWatch."""

from __future__ import annotations

import json
import statistics
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.local.engine.hosted.metric_statistics import LARGEST, MetricPublisher, MetricSummary
from estimators.local.engine.records import write_time

BEGIN = datetime(2030, 1, 1, tzinfo=timezone.utc)


def summary_of(values: list[float]) -> MetricSummary:
    summary = MetricSummary.of(values[0], BEGIN)
    for second, value in enumerate(values[1:], 1):
        summary = summary.added(value, BEGIN + timedelta(seconds=second))
    return summary


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_statistics_are_those_of_all_values(values: list[float]) -> None:
    shown = summary_of(values).describe()
    assert (shown["Min"], shown["Max"], shown["Last"]) == (min(values), max(values), values[-1])
    assert shown["Count"] == len(values)
    assert shown["Avg"] == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert shown["StdDev"] == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-3)


def test_the_last_value_is_the_one_with_the_latest_time() -> None:
    late = summary_of([1.0, 3.0]).added(2.0, BEGIN - timedelta(seconds=9)).describe()
    assert (late["Last"], late["Min"], late["Count"], late["Avg"]) == (3.0, 1.0, 3, 2.0)


def test_what_no_float_holds_is_left_out() -> None:
    shown = summary_of([1.7e308, -1.7e308]).describe()
    assert (shown["Avg"], "StdDev" in shown) == (0.0, False)


def test_it_is_the_same_after_it_was_kept() -> None:
    summary = summary_of([1.5, 2.5])
    assert MetricSummary.from_json(json.loads(json.dumps(summary.to_json(), default=write_time))) == summary


SECOND = datetime(2026, 5, 4, 3, 2, 1, 700_000, tzinfo=timezone.utc)


@pytest.fixture
def cloudwatch(clients: Callable[[str], Any]) -> Any:
    return clients("cloudwatch")


@pytest.fixture
def published(cloudwatch: Any) -> Callable[..., list[dict[str, Any]]]:
    def read(job: str, metric: str) -> list[dict[str, Any]]:
        statistics = cloudwatch.get_metric_statistics(
            Namespace="/aws/sagemaker/TrainingJobs",
            MetricName=metric,
            Dimensions=[{"Name": "TrainingJobName", "Value": job}],
            StartTime=SECOND,
            EndTime=SECOND + timedelta(minutes=5),
            Period=60,
            Statistics=["Average", "Minimum", "Maximum", "SampleCount"],
        )
        return sorted(statistics["Datapoints"], key=lambda point: point["Timestamp"])

    return read


def test_the_statistics_of_a_second_are_those_of_its_values(cloudwatch: Any, published: Any) -> None:
    job = f"job-{uuid.uuid4().hex[:12]}"
    publisher = MetricPublisher(cloudwatch, job)
    for value in (1.0, 2.0, 9.0):
        publisher.add("loss", value, SECOND)
    publisher.add("loss", 7.0, SECOND + timedelta(minutes=2))
    publisher.add("accuracy", 0.5, SECOND)
    publisher.flush()
    first, second = published(job, "loss")
    assert [first[each] for each in ("Average", "Minimum", "Maximum", "SampleCount")] == [4.0, 1.0, 9.0, 3.0]
    assert (second["Average"], second["SampleCount"]) == (7.0, 1.0)
    assert [point["Average"] for point in published(job, "accuracy")] == [0.5]
    assert published("another", "loss") == []


def test_a_value_that_cloudwatch_takes_none_of_costs_no_other(cloudwatch: Any, published: Any) -> None:
    job = f"job-{uuid.uuid4().hex[:12]}"
    publisher = MetricPublisher(cloudwatch, job)
    for value in (2 * LARGEST, -2 * LARGEST, 3.0):
        publisher.add("loss", value, SECOND)
    publisher.flush()
    assert [(point["Average"], point["SampleCount"]) for point in published(job, "loss")] == [(3.0, 1.0)]


class Refusing:
    """A CloudWatch that takes the second request alone, of those with a thousand data at most."""

    def __init__(self) -> None:
        self.requests: list[int] = []

    def put_metric_data(self, *, MetricData: list[Any], **_: Any) -> None:  # noqa: N803 - boto3's names
        self.requests.append(len(MetricData))
        if len(self.requests) != 2:
            raise ConnectionError("gone")


def test_what_is_refused_is_said_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = Refusing()
    publisher = MetricPublisher(client, "a-job")
    for second in range(1001):
        publisher.add("loss", 1.0, SECOND + timedelta(seconds=second))
    publisher.flush()
    assert client.requests == [1000, 1]
    assert caplog.messages == ["1000 metric data of a-job could not be sent"]
