"""The jobs of one kind that run on hosts: their creation, deletion and end, and the jobs of an earlier platform."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Generic, TypeVar

from estimators.local.directory_reaper import remove_tree
from estimators.local.engine.errors import ApiError, not_found
from estimators.local.engine.job_request import JobRequest
from estimators.local.engine.job_runner import JobRunner
from estimators.local.engine.job_state import JobState
from estimators.local.engine.job_store import JobStore, Make, RecordSaver
from smddp.job.failure_report import within_limit

Job = TypeVar("Job", bound="JobState[JobRequest]")


class HostedJobs(Generic[Job]):
    """The jobs of one kind by name, also those of earlier engines in the store."""

    def __init__(
        self,
        key: str,  # the kind in ARNs and in the store: training-job
        kind: str,  # the kind in messages: training job
        log_group: str,
        store: JobStore,
        restore: Make[Job],
        runner: Callable[[Job], JobRunner[JobRequest]],  # raises ApiError if the job can't run here
    ) -> None:
        self._key = key
        self._kind = kind
        self._log_group = log_group
        self._store = store
        self._runner = runner
        # Guards the three below. Taken before a job's lock and the store's. A job is created under it, and none once
        # there is a refusal: `fail` and `close` set the refusal under it, then end every job that exists.
        self._lock = threading.Lock()
        self._jobs = store.load(key, restore)
        self._runners: dict[str, JobRunner[JobRequest]] = {}
        self._refusal = ""
        self._broken_off = [job for job in self._jobs.values() if not job.ended]

    def start(self, name: str, make: Callable[[RecordSaver], Job]) -> Job:
        """Start the job that ``make`` returns for its saver.

        Raise ApiError if the name is taken, the job can't be saved, or no job may start any more.
        """
        job = make(self._store.saver(self._key, name))
        runner = self._runner(job)
        with self._lock:
            if self._refusal:
                raise ApiError("ServiceUnavailable", self._refusal, 503)
            if name in self._jobs:
                raise ApiError(
                    "ResourceInUse",
                    f"{self._kind.capitalize()} names must be unique within an AWS account and region; there is one "
                    f"named {name} already.",
                )
            self._store.admit(job)
            self._jobs[name], self._runners[name] = job, runner
            runner.start()
        return job

    def all(self) -> list[Job]:
        """Return all jobs."""
        with self._lock:
            return list(self._jobs.values())

    def find(self, name: str) -> Job | None:
        """Return the job of a name, or None."""
        return self._jobs.get(name)

    def get(self, name: str) -> Job:
        """Return the job of a name; raise ApiError if it is absent."""
        job = self._jobs.get(name)
        if job is None:
            raise not_found(name, self._kind)
        return job

    def delete(self, name: str) -> None:
        """Delete a job that has ended; raise ApiError if it is absent or has not ended."""
        with self._lock:
            job, runner = self.get(name), self._runners.get(name)
        if not job.ended:
            raise ApiError("ResourceInUse", f"{name} has not ended; stop it before it is deleted.")
        if runner is not None:  # an earlier engine's job has none
            runner.join()
        with self._lock:
            if self._jobs.get(name) is job:  # else it was deleted meanwhile, and the name may be a new one's
                self._jobs.pop(name)
                self._runners.pop(name, None)
                job.forget()

    def go_on(self) -> None:
        """Resume the jobs of a killed engine that may begin again, by spot or RetryStrategy, and end the others."""
        for job in self._broken_off:
            last = self._store.last_line_time(self._log_group, job.name)
            said = datetime.fromtimestamp((last or 0) / 1000, timezone.utc)
            if not job.outlive(max(said, job.describe()["LastModifiedTime"])):
                continue
            try:
                runner = self._runner(job)
            except ApiError as error:
                job.finish(failure_reason=within_limit(f"ClientError: {error.message}"))
                continue
            with self._lock:
                self._runners[job.name] = runner
                runner.start()

    def fail(self, reason: str) -> None:
        """End all running jobs as Failed, and start no more: the platform has lost a part that jobs need."""
        with self._lock:
            self._refusal = f"No job can start any more: {reason}"
            jobs = list(self._jobs.values())
        for job in jobs:
            job.platform_failed(f"InternalServerError: {reason}", for_good=True)

    def close(self) -> None:
        """Tell all jobs to end at once, saving nothing, and start no more; `join` waits for their ends."""
        with self._lock:
            self._refusal = "The platform is being closed."
            jobs = list(self._jobs.values())
        for job in jobs:
            job.close()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for each closed job, then remove its directory."""
        runners = list(self._runners.values())
        for runner in runners:
            runner.join(timeout)
        for runner in runners:
            remove_tree(runner.directory)
