"""The values of a job's metrics are in CloudWatch, where the SDK's analytics look for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from estimators.local.engine.metric_publisher import LARGEST, MetricPublisher

BEGIN = datetime(2026, 5, 4, 3, 2, 1, 700_000, tzinfo=timezone.utc)


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
            StartTime=BEGIN,
            EndTime=BEGIN + timedelta(minutes=5),
            Period=60,
            Statistics=["Average", "Minimum", "Maximum", "SampleCount"],
        )
        return sorted(statistics["Datapoints"], key=lambda point: point["Timestamp"])

    return read


def test_the_statistics_of_a_second_are_those_of_its_values(cloudwatch: Any, published: Any) -> None:
    job = f"job-{uuid.uuid4().hex[:12]}"
    publisher = MetricPublisher(cloudwatch, job)
    for value in (1.0, 2.0, 9.0):
        publisher.add("loss", value, BEGIN)
    publisher.add("loss", 7.0, BEGIN + timedelta(minutes=2))
    publisher.add("accuracy", 0.5, BEGIN)
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
        publisher.add("loss", value, BEGIN)
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
        publisher.add("loss", 1.0, BEGIN + timedelta(seconds=second))
    publisher.flush()
    assert client.requests == [1000, 1]
    assert caplog.messages == ["1000 metric data of a-job could not be sent"]
