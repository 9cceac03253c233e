"""The jobs of one kind that run on hosts: their start, their common end, and the jobs of a killed platform."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TypeVar

from estimators.local.directory_reaper import remove_tree
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.request import HostedRequest
from estimators.local.engine.hosted.runner import HostedRunner
from estimators.local.engine.records import JobRecords, RecordStore, StoredLine
from smddp.failure import within_limit

Job = TypeVar("Job", bound="HostedRecord[HostedRequest]")


class HostedRecords(JobRecords[Job, HostedRunner[HostedRequest]]):
    """The jobs of one kind by name, including jobs of earlier platforms in the store."""

    def __init__(
        self,
        record: type[Job],
        arn_prefix: str,
        store: RecordStore,
        make_runner: Callable[[Job], HostedRunner[HostedRequest]],  # raises ApiError if the job can't run here
    ) -> None:
        super().__init__(record.kind, arn_prefix, store, record.from_json)
        self._make_runner = make_runner
        self._broken_off = [job for job in self.all() if not job.ended]

    def run(self, job: Job) -> None:
        """Start a new job.

        Raise ApiError if it can't run here, its name is taken, it can't be saved, or no job may start any more.
        """
        self.start(job, self._make_runner(job))

    def go_on(self) -> None:
        """Resume the jobs of a killed platform that may begin again, by spot or RetryStrategy, and end the others."""
        for job in self._broken_off:
            job.metrics.read_again(functools.partial(self._kept_lines, job))
            last = self._store.last_line_time(job.log_group, job.name)
            said = datetime.fromtimestamp((last or 0) / 1000, timezone.utc)
            if not job.outlive(max(said, job.summary()["LastModifiedTime"])):
                continue
            try:
                runner = self._make_runner(job)
            except ApiError as error:
                job.finish(failure_reason=within_limit(f"ClientError: {error.message}"))
                continue
            with self._lock:
                self._runners[job.name] = runner
                runner.start()

    def _kept_lines(self, job: Job, later_than: int) -> Iterator[StoredLine]:
        until = self._store.last_position()
        return self._store.lines(job.log_group, job.name, until=until, later_than=later_than)

    def fail(self, reason: str) -> None:
        """End all running jobs as Failed, and start no more: the platform has lost a part that jobs need."""
        self.refuse(f"No job can start any more: {reason}")
        for job in self.all():
            job.platform_failed(f"InternalServerError: {reason}", for_good=True)

    def close(self) -> None:
        """Tell all jobs to end at once, saving nothing, and start no more; `join` waits for their ends."""
        self.refuse("The platform is being closed.")
        for job in self.all():
            job.close()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for each closed job, then remove its directory."""
        runners = self.runners()
        for runner in runners:
            runner.join(timeout)
        for runner in runners:
            remove_tree(runner.directory)
