"""What every job of a platform stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.local.chaos import Chaos
from estimators.local.engine.job_store import NOTHING_KEPT, JobStore
from estimators.local.executors import Executor

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client


@dataclass(kw_only=True, slots=True, frozen=True)
class Platform:
    """Its directories, clients and executor, and how long things may take."""

    directory: Path
    s3: S3Client
    logs: CloudWatchLogsClient
    executor: Executor
    container_environment: Mapping[str, str]
    region: str
    grace_seconds: float
    """Between SIGTERM and SIGKILL."""
    sync_seconds: float
    """Between two looks at the directories that are kept in step with S3."""
    rescue: Path
    """Where the files of a job are left that can't be saved."""
    cloudwatch: CloudWatchClient | None = None
    """Takes the values of metrics; None: nobody looks for them there."""
    store: JobStore = NOTHING_KEPT
    """What remembers the jobs."""
    chaos: Chaos = field(default_factory=Chaos)
    """The faults that jobs meet, beside those of their tags."""
