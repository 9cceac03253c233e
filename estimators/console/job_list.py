"""One page of the list of jobs, as ListTrainingJobs filters, orders and cuts it: nothing is kept here."""

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
"""How long ago a job may have been created, by the name that the address has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are wanted. Values that are none are as good as empty: an address is easily mistyped."""

    name: str = ""
    """A part of the name."""
    status: str = ""
    """One of `STATUSES`; empty: any."""
    within: str = ""
    """One of `SPANS`; empty: of any age."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> JobFilter:
        """Take the filter of an address; AWS takes names of 63 characters at most."""
        status, within = query.get("status", ""), query.get("within", "")
        return cls(
            name=query.get("name", "").strip()[:63],
            status=status if status in STATUSES else "",
            within=within if within in SPANS else "",
        )

    def request(self, now: datetime) -> dict[str, Any]:
        """Return the members of ListTrainingJobs that ask for these jobs."""
        return {
            **({"NameContains": self.name} if self.name else {}),
            **({"StatusEquals": self.status} if self.status else {}),
            **({"CreationTimeAfter": now - SPANS[self.within]} if self.within else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs, newest first."""

    jobs: Sequence[Mapping[str, Any]]
    """TrainingJobSummaries, each with ``Seconds``: how long it took, or has taken so far."""
    next_token: str
    """Asks for the jobs that come after these; empty: there are none."""


def job_page(sagemaker: Any, wanted: JobFilter, token: str) -> JobPage:
    """Ask for one page.

    Args:
        sagemaker: A boto3 client.
        wanted: Which jobs.
        token: The `JobPage.next_token` of the page before; empty for the first.

    Raises:
        botocore.exceptions.ClientError: It is refused.
        botocore.exceptions.BotoCoreError: Nobody answers.
    """
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
    """Return when a job ended, or now; one that ended before it trained has no TrainingEndTime."""
    ended = job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped")
    end: datetime = job.get("TrainingEndTime") or (job.get("LastModifiedTime", now) if ended else now)
    return end
