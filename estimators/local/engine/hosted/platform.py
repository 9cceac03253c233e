"""The directories, clients and settings that all jobs of a platform share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.local.chaos import Chaos
from estimators.local.engine.records import NOTHING_KEPT, RecordStore
from estimators.local.executors import Executor

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client


@dataclass(kw_only=True, slots=True, frozen=True)
class Platform:
    """The directories, clients, executor and time limits of a platform."""

    directory: Path
    """Of running jobs."""
    rescue: Path
    """Where a job's files go if they can't be uploaded."""
    s3: S3Client
    logs: CloudWatchLogsClient
    executor: Executor
    container_environment: Mapping[str, str]
    """Variables for every host, such as the platform's endpoint and keys."""
    region: str
    grace_seconds: float = 120
    """Between SIGTERM and SIGKILL."""
    sync_seconds: float = 0.1
    """Least time between two scans of directories that are copied to S3 while hosts run."""
    cloudwatch: CloudWatchClient | None = None
    """Takes the values of metrics; None: they are not sent."""
    store: RecordStore = NOTHING_KEPT
    """Remembers the jobs."""
    chaos: Chaos = field(default_factory=Chaos)
    """The platform's faults for jobs, in addition to the faults in a job's tag."""
