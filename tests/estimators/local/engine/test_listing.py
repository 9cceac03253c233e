"""Lists of jobs: filters, order, pages."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.training.operations import list_training_jobs

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def job(name: str, minute: int, status: str = "Completed") -> dict[str, Any]:
    created = START + timedelta(minutes=minute)
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn/{name}",
        "TrainingJobStatus": status,
        "SecondaryStatus": status,
        "CreationTime": created,
        "LastModifiedTime": created + timedelta(hours=1),
        "HyperParameters": {"not": "shown"},
    }


JOBS = [job("beta", 1), job("alpha", 3, "Failed"), job("gamma", 2), job("delta", 2, "Failed")]


def names(**request: Any) -> list[str]:
    return [entry["TrainingJobName"] for entry in list_training_jobs(JOBS, request)["TrainingJobSummaries"]]


def test_the_order_is_by_creation_unless_asked() -> None:
    assert names() == ["beta", "delta", "gamma", "alpha"]
    assert names(SortOrder="Descending") == ["alpha", "gamma", "delta", "beta"]
    assert names(SortBy="Name") == ["alpha", "beta", "delta", "gamma"]
    assert names(SortBy="Status") == ["beta", "gamma", "alpha", "delta"]


def test_filters() -> None:
    assert names(NameContains="TA") == ["beta", "delta"]
    assert names(StatusEquals="Failed") == ["delta", "alpha"]
    assert names(StatusEquals="Failed", NameContains="alp") == ["alpha"]
    assert names(CreationTimeAfter=START + timedelta(minutes=2)) == ["alpha"]
    assert names(CreationTimeBefore=START + timedelta(minutes=2)) == ["beta"]
    assert names(LastModifiedTimeAfter=START + timedelta(minutes=62)) == ["alpha"]
    assert names(WarmPoolStatusEquals="InUse") == []


@pytest.mark.parametrize("form", [lambda time: time.timestamp(), lambda time: time.isoformat(), lambda time: time])
def test_times_may_be_numbers_as_in_the_json_protocol(form: Any) -> None:
    assert names(CreationTimeAfter=form(START + timedelta(minutes=1.5))) == ["delta", "gamma", "alpha"]


def test_summaries_show_what_the_service_shows() -> None:
    (entry, *_) = list_training_jobs(JOBS, {})["TrainingJobSummaries"]
    assert sorted(entry) == [
        "CreationTime",
        "LastModifiedTime",
        "SecondaryStatus",
        "TrainingJobArn",
        "TrainingJobName",
        "TrainingJobStatus",
    ]


@pytest.mark.parametrize("order", ["Ascending", "Descending"])
@pytest.mark.parametrize("sort_by", ["Name", "CreationTime", "Status"])
def test_pages_together_are_the_list(order: str, sort_by: str) -> None:
    request: dict[str, Any] = {"SortBy": sort_by, "SortOrder": order, "MaxResults": 1}
    paged = []
    while True:
        answer = list_training_jobs(JOBS, request)
        paged += [entry["TrainingJobName"] for entry in answer["TrainingJobSummaries"]]
        if "NextToken" not in answer:
            break
        request["NextToken"] = answer["NextToken"]
    assert paged == names(SortBy=sort_by, SortOrder=order)


def test_a_job_that_comes_between_two_pages_shifts_nothing() -> None:
    first = list_training_jobs(JOBS, {"SortOrder": "Descending", "MaxResults": 2})
    second = list_training_jobs([*JOBS, job("new", 9)], {"SortOrder": "Descending", "NextToken": first["NextToken"]})
    assert [entry["TrainingJobName"] for entry in second["TrainingJobSummaries"]] == ["delta", "beta"]


def test_a_page_has_ten_unless_asked() -> None:
    many = [job(f"job-{number}", number) for number in range(11)]
    assert len(list_training_jobs(many, {})["TrainingJobSummaries"]) == 10
    assert "NextToken" not in list_training_jobs(many, {"MaxResults": 11})


@pytest.mark.parametrize("token", ["none", "e30=", "WzEsMl0=", "bnVsbA=="])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(ApiError, match="NextToken"):
        names(NextToken=token)
