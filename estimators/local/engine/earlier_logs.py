"""The logs of jobs that an earlier platform ran: they come back to CloudWatch Logs when somebody first asks for them.

Not when the platform starts: most are never looked at again, and moto keeps what it has in memory.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from estimators.local.engine.job_store import JobStore
from estimators.local.engine.logs import make_stream, take_batch

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_logs.type_defs import InputLogEventTypeDef


class EarlierLogs:
    """What there was of one log group in a store when the platform started.

    Args:
        group: The log group.
        store: Where the lines are.
        client: CloudWatch Logs, which gets them.
    """

    def __init__(self, group: str, store: JobStore, client: CloudWatchLogsClient) -> None:
        self._group = group
        self._store = store
        self._client = client
        # Guards the names, and is held while a job's lines are brought: who asks for them meanwhile waits.
        self._lock = threading.Lock()
        self._jobs = set(store.jobs_with_lines(group))
        self._until = store.place()  # what a job that goes on says from now on, CloudWatch has been sent

    def bring(self, streams: str) -> None:
        """Return once all streams whose names begin so are there.

        Args:
            streams: The beginning of names, which are ``JOB/HOST-TIME``.
        """
        with self._lock:
            for job in [job for job in self._jobs if f"{job}/".startswith(streams) or streams.startswith(f"{job}/")]:
                self._bring(job)
                self._jobs.remove(job)

    def forget(self, stream: str | None) -> None:
        """Let go of a stream, or with None of all: somebody deletes it."""
        with self._lock:
            self._store.delete_lines(self._group, stream)
            self._jobs.intersection_update(self._store.jobs_with_lines(self._group))

    def _bring(self, job: str) -> None:
        streams: defaultdict[str, deque[InputLogEventTypeDef]] = defaultdict(deque)
        for line in self._store.lines(self._group, job, until=self._until):
            streams[line.stream].append({"timestamp": line.time, "message": line.line})
        for stream, events in streams.items():
            make_stream(self._client, self._group, stream)
            while batch := take_batch(events):
                self._client.put_log_events(logGroupName=self._group, logStreamName=stream, logEvents=batch)
