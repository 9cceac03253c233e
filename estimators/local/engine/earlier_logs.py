"""The logs of an earlier platform's jobs: sent to CloudWatch Logs when a client first asks for them.

Not at the platform's start: most logs are never read again, and moto keeps all its data in memory.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from estimators.local.engine.logs import make_stream, take_batch
from estimators.local.engine.records import RecordStore

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_logs.type_defs import InputLogEventTypeDef


class EarlierLogs:
    """The lines of one log group that were in the store when the platform started."""

    def __init__(self, group: str, store: RecordStore, client: CloudWatchLogsClient) -> None:
        self._group = group
        self._store = store
        self._client = client
        # Guards `_jobs`. Held while a job's lines are sent, so a second request waits until they are there. Taken
        # before the store's lock.
        self._lock = threading.Lock()
        self._jobs = set(store.jobs_with_lines(group))
        self._until = store.place()  # later lines, of jobs that go on, are sent as they come

    def bring(self, streams: str) -> None:
        """Return once all streams whose names, ``JOB/HOST-TIME``, begin with ``streams`` are in CloudWatch."""
        with self._lock:
            for job in [job for job in self._jobs if f"{job}/".startswith(streams) or streams.startswith(f"{job}/")]:
                self._bring(job)
                self._jobs.remove(job)

    def forget(self, stream: str | None) -> None:
        """Forget the lines of a deleted stream, or of the whole group if None."""
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
