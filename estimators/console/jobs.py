"""The jobs that the pages show: where they are, one page of their list, and the comparison of their requests.

ListTrainingJobs filters, sorts and pages the list, so nothing is stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from estimators.training_job import TrainingJob
from smddp.secret_text import masked

if TYPE_CHECKING:
    import boto3

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
class JobSource:
    """One region of an account, or a local platform. Its clients are thread-safe."""

    name: str
    """Its name on the pages."""
    session: boto3.Session
    may_write: bool = False
    """Whether the pages have buttons that stop and resume jobs."""
    interrupt: Callable[[str], object] | None = None
    """Interrupts the spot job of this name; None if not possible."""
    sagemaker: Any = field(init=False)
    """A boto3 client."""
    logs: Any = field(init=False)
    """A boto3 client of CloudWatch Logs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sagemaker", self.session.client("sagemaker"))
        object.__setattr__(self, "logs", self.session.client("logs"))

    def job(self, name: str) -> TrainingJob:
        """Return a handle on a job. Sends no request."""
        return TrainingJob(name, self.session)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One member of the requests."""

    name: str
    values: Sequence[str | None]
    """The masked value in each job's request, or None if absent."""
    differs: bool


def compared(requests: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row for each member of some requests, including nested members; those that differ come first."""
    raw = [dict(_flattened(request)) for request in requests]
    shown = [dict(_flattened(masked(request))) for request in requests]
    found = []
    for name in dict.fromkeys(name for each in raw for name in each):
        differs = len({each.get(name) for each in raw}) > 1
        found.append(Row(name=name, values=[each.get(name) for each in shown], differs=differs))
    return sorted(found, key=lambda row: not row.differs)


def _flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flattened(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _flattened(each, f"{path}[{number}]")
    else:
        yield path, str(value)
