"""One page of the list of jobs. ListTrainingJobs filters, sorts and pages it, so nothing is stored here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

PAGE_JOBS = 50
STATUSES = ("InProgress", "Completed", "Failed", "Stopping", "Stopped")
SPANS: Mapping[str, timedelta] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "month": timedelta(days=30),
}
"""The greatest age of a job, by the name in the URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """The filter of a list of jobs. Invalid values count as empty, because URLs are easily mistyped."""

    name: str = ""
    """A part of the name."""
    status: str = ""
    """One of `STATUSES`, or empty for any."""
    within: str = ""
    """One of `SPANS`, or empty for any age."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> JobFilter:
        """Read the filter from a URL's query; the name is cut to AWS's 63 characters."""
        status, within = query.get("status", ""), query.get("within", "")
        return cls(
            name=query.get("name", "").strip()[:63],
            status=status if status in STATUSES else "",
            within=within if within in SPANS else "",
        )

    def request(self, now: datetime) -> dict[str, Any]:
        """Return the members of ListTrainingJobs for this filter."""
        return {
            **({"NameContains": self.name} if self.name else {}),
            **({"StatusEquals": self.status} if self.status else {}),
            **({"CreationTimeAfter": now - SPANS[self.within]} if self.within else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs, newest first."""

    jobs: Sequence[Mapping[str, Any]]
    """TrainingJobSummaries, each with ``Seconds``: its duration, up to now if it has not ended."""
    next_token: str
    """The token of the next page, or empty on the last page."""


def job_page(sagemaker: Any, wanted: JobFilter, token: str) -> JobPage:
    """Fetch one page of jobs, or raise botocore's error; `token` is the previous page's `next_token`, or empty."""
    now = datetime.now(timezone.utc)
    answer = sagemaker.list_training_jobs(
        MaxResults=PAGE_JOBS,
        SortBy="CreationTime",
        SortOrder="Descending",
        **wanted.request(now),
        **({"NextToken": token} if token else {}),
    )
    jobs = [
        {**job, "Seconds": (_end(job, now) - job["CreationTime"]).total_seconds()}
        for job in answer["TrainingJobSummaries"]
    ]
    return JobPage(jobs=jobs, next_token=answer.get("NextToken", ""))


def _end(job: Mapping[str, Any], now: datetime) -> datetime:
    """Return the time when a job ended, or now; a job that never trained has no TrainingEndTime."""
    ended = job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped")
    end: datetime = job.get("TrainingEndTime") or (job.get("LastModifiedTime", now) if ended else now)
    return end
