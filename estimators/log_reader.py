"""The log of a training job, read from CloudWatch Logs as it grows: each line once, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from operator import attrgetter
from typing import Any

from estimators.api_retries import ask

LOG_GROUP = "/aws/sagemaker/TrainingJobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the log."""

    timestamp: int
    """Milliseconds since 1970, when the platform received the line."""
    host: str
    """The host's name in the job: ``algo-1``, ``algo-2``, …"""
    message: str

    @property
    def time(self) -> datetime:
        """The timestamp, in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, timezone.utc)


@dataclass(slots=True)
class LogReader:
    """Reads a job's log, and remembers the position in each stream."""

    client: Any
    """A boto3 client of CloudWatch Logs."""
    job_name: str
    cancelled: Callable[[], bool] = lambda: False
    """Returns True to end the retries of a failing request."""
    _tokens: dict[str, str] = field(default_factory=dict)

    def unread(self) -> Iterator[LogLine]:
        """Yield all hosts' lines since the last call, merged by time. Pages are fetched as the lines are consumed."""
        pages = [self._unread_of(stream) for stream in self._streams()]
        return heapq.merge(*pages, key=attrgetter("timestamp"))

    def _streams(self) -> list[str]:
        """Return the names of the job's streams: one for each host, and after each interruption one more for each."""
        pages = self.client.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.job_name}/"
        )
        try:
            return ask(
                lambda: [stream["logStreamName"] for page in pages for stream in page["logStreams"]], self.cancelled
            )
        except self.client.exceptions.ResourceNotFoundException:
            return []  # no training job of this account has logged yet

    def _unread_of(self, stream: str) -> Iterator[LogLine]:
        host = stream.rpartition("/")[2].rpartition("-")[0]
        while True:
            token = {"nextToken": self._tokens[stream]} if stream in self._tokens else {}
            names = {"logGroupName": LOG_GROUP, "logStreamName": stream}
            page = ask(partial(self.client.get_log_events, **names, startFromHead=True, **token), self.cancelled)
            for event in page["events"]:
                yield LogLine(timestamp=event["timestamp"], host=host, message=event["message"])
            is_last = page["nextForwardToken"] == self._tokens.get(stream)
            self._tokens[stream] = page["nextForwardToken"]
            if is_last:
                return
