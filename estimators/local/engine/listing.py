"""ListTrainingJobs: filters, order and pages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid

DEFAULT_PAGE = 10
_MEMBERS = (
    "TrainingJobName",
    "TrainingJobArn",
    "CreationTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "TrainingJobStatus",
    "SecondaryStatus",
)
_SORT_BY = {"Name": "TrainingJobName", "CreationTime": "CreationTime", "Status": "TrainingJobStatus"}


def list_jobs(jobs: Iterable[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer ListTrainingJobs.

    Args:
        jobs: The descriptions of all jobs.
        request: The request, already checked.

    Raises:
        ApiError: ValidationException, for a NextToken that is none.
    """
    if "WarmPoolStatusEquals" in request or "TrainingPlanArnEquals" in request:
        return {"TrainingJobSummaries": []}  # there are neither warm pools nor training plans here
    wanted = [job for job in jobs if _matches(job, request)]
    page, token = cut_page(wanted, _SORT_BY[request.get("SortBy", "CreationTime")], request)
    summaries = [{member: job[member] for member in _MEMBERS if member in job} for job in page]
    return {"TrainingJobSummaries": summaries, **token}


def cut_page(
    jobs: list[Mapping[str, Any]], member: str, request: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return the jobs of one page in the order of ``member``, and the token of the next, if there is one.

    A token holds the last job's place in the order, so pages stay right while jobs come and go.
    """
    descending = request.get("SortOrder") == "Descending"
    ordered = sorted(jobs, key=lambda job: _place(job, member), reverse=descending)
    if "NextToken" in request:
        last = _read_token(request["NextToken"])
        ordered = [job for job in ordered if (_place(job, member) < last if descending else _place(job, member) > last)]
    count = request.get("MaxResults", DEFAULT_PAGE)
    page = ordered[:count]
    return page, {"NextToken": _token(_place(page[-1], member))} if len(ordered) > count else {}


def _matches(job: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    if request.get("NameContains", "").lower() not in job["TrainingJobName"].lower():
        return False
    if request.get("StatusEquals", job["TrainingJobStatus"]) != job["TrainingJobStatus"]:
        return False
    for member in ("CreationTime", "LastModifiedTime"):
        after, before = request.get(f"{member}After"), request.get(f"{member}Before")
        if after is not None and job[member] <= parse_to_aware_datetime(after):
            return False
        if before is not None and job[member] >= parse_to_aware_datetime(before):
            return False
    return True


def _place(job: Mapping[str, Any], member: str) -> tuple[str, float, str]:
    """Return where a job comes in the order: by text, then by number (one of them is empty), then by its name."""
    value = job.get(member)
    name = job["TrainingJobName"]
    if isinstance(value, datetime):
        return ("", value.timestamp(), name)
    if isinstance(value, int | float):
        return ("", float(value), name)
    return ("" if value is None else str(value), 0.0, name)


def _token(place: tuple[str, float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_token(token: str) -> tuple[str, float, str]:
    try:
        text, number, name = json.loads(base64.urlsafe_b64decode(token))
        return (str(text), float(number), str(name))
    except (ValueError, TypeError):
        raise invalid("NextToken is not one that this platform gave; start again without it.") from None
