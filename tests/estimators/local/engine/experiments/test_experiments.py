"""Trial components where no client can lead: numbers that no double holds, and a job that is refused late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.records import RecordStore
from tests.estimators.local.engine.whole_jobs import SPOT

LARGE = (10**400, float("inf"))  # as JSON may write them


@pytest.mark.parametrize("number", LARGE)
def test_a_number_that_no_double_holds_is_refused_and_nothing_of_it_stays(client: Any, number: float) -> None:
    parameters = {"a": {"NumberValue": number}}
    with pytest.raises(ApiError, match="Parameters: a: the number is larger than a double holds"):
        client.call("CreateTrialComponent", TrialComponentName="large", Parameters=parameters)
    client.call("CreateTrialComponent", TrialComponentName="large")
    data = [{"MetricName": "a", "Timestamp": 1.0, "Value": value} for value in (1.0, number)]
    with pytest.raises(ApiError, match="MetricData: Value: the number is larger than a double holds"):
        client.call("BatchPutMetrics", TrialComponentName="large", MetricData=data)
    assert client.call("DescribeTrialComponent", TrialComponentName="large")["Metrics"] == []


def test_too_many_parameters_are_refused(client: Any) -> None:
    client.call("CreateTrialComponent", TrialComponentName="many", Parameters=numbered(0))
    with pytest.raises(ApiError, match="many would have 400 Parameters; 300 is the limit"):
        client.call("UpdateTrialComponent", TrialComponentName="many", Parameters=numbered(200))


def numbered(first: int) -> dict[str, Any]:
    return {f"p{number}": {"NumberValue": 1.0} for number in range(first, first + 200)}


def test_a_job_that_is_refused_late_leaves_all_as_it_was(client: Any) -> None:
    client.call("CreateExperiment", ExperimentName="e")
    config = {"ExperimentConfig": {"ExperimentName": "e"}}
    request = client.request("", **config)
    name = client.create(request)
    client.wait(name)
    client.call("DeleteTrainingJob", TrainingJobName=name)
    component = {"TrialComponentName": f"{name}-aws-training-job"}
    before = client.call("DescribeTrialComponent", **component)
    assert before["Status"]["PrimaryStatus"] == "Completed"  # though nobody had looked before the job was deleted
    client.engine.fail("for the test")
    for again in (request, client.request("", **config)):
        with pytest.raises(ApiError, match="No job can start any more"):
            client.create(again)
    assert client.call("DescribeTrialComponent", **component) == before
    assert len(client.call("ListTrialComponents")["TrialComponentSummaries"]) == 1
    assert len(client.call("ListTrials", ExperimentName="e")["TrialSummaries"]) == 1


def test_a_user_s_component_is_not_overwritten_by_a_job(client: Any) -> None:
    request = client.request()
    client.call("CreateTrialComponent", TrialComponentName=f"{request['TrainingJobName']}-aws-training-job")
    with pytest.raises(ApiError, match="already exists"):
        client.create(request)


def test_the_end_of_a_platform_is_not_the_end_of_a_component(
    start_engine: Callable[..., Any], client_of: Callable[..., Any], tmp_path: Path
) -> None:
    store = RecordStore(tmp_path / "jobs.sqlite")
    client = client_of(start_engine(store=store))
    name = client.submit("import time; time.sleep(60)", **SPOT)
    client.wait_for(name, "Training")
    client.engine.close()
    component = {"TrialComponentName": f"{name}-aws-training-job"}
    assert client.call("DescribeTrialComponent", **component)["Status"]["PrimaryStatus"] == "Stopped"
    store.close()
    store = RecordStore(tmp_path / "jobs.sqlite")
    later = client_of(start_engine(store=store))
    assert later.call("DescribeTrialComponent", **component)["Status"]["PrimaryStatus"] == "InProgress"
    store.close()
