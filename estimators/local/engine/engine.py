"""The engine: the operations on training, tuning and processing jobs, experiments and tags."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.experiments import Experiments
from estimators.local.engine.hosted.logs import LOG_GROUPS, EarlierLogs
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.listing import search_records
from estimators.local.engine.processing import ProcessingOperations
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.engine.records import Record, Tags
from estimators.local.engine.training import TrainingOperations
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.tuning import TuningOperations
from estimators.local.engine.validation import Handler, check_request
from estimators.service_model import service_model

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
_READING = ("Describe", "List", "Search")
"""Prefixes of the names of read-only operations."""


class Engine:
    """Runs jobs on this machine, as SageMaker runs them on AWS."""

    def __init__(self, platform: Platform, *, account_id: str) -> None:
        platform.directory.mkdir(parents=True, exist_ok=True)
        service_model()  # takes 0.1 s to read: now, not in the first request
        self._platform = platform
        store = platform.store
        self._earlier_logs = {group: EarlierLogs(group, store, platform.logs) for group in LOG_GROUPS}
        arn_prefix = f"arn:aws:sagemaker:{platform.region}:{account_id}"
        self._experiments = Experiments(arn_prefix, store, self._find_job)
        self._training = TrainingOperations(self._platform, arn_prefix, self._experiments)
        self._processing = ProcessingOperations(self._platform, arn_prefix, self._experiments)
        self._tuning = TuningOperations(self._start_tuned, self._training.jobs.find, arn_prefix, store)
        self._operations: dict[str, Handler] = {
            **self._training.operations,
            **self._processing.operations,
            **self._tuning.operations,
            **self._experiments.operations,
            **Tags(self._find).operations,
            "Search": self._search,
        }

    @property
    def operations(self) -> frozenset[str]:
        """The names of the operations that `call` answers."""
        return frozenset(self._operations)

    def call(self, operation: str, request: dict[str, Any], *, region: str) -> dict[str, Any]:
        """Answer one request, input and output in boto3's form, with times as datetimes.

        Raise ApiError if AWS would refuse the request.
        """
        answer = self._operations.get(operation)
        if answer is None:
            raise ApiError(
                "UnknownOperationException", f"{operation} is not one of {', '.join(sorted(self.operations))}."
            )
        if region != self._platform.region:
            raise invalid(
                f"This platform is in the region {self._platform.region}; the request is for {region}. "
                f"Set AWS_REGION={self._platform.region}, or the client's region_name."
            )
        answered = answer(check_request(operation, request))
        if not operation.startswith(_READING):
            self._platform.store.require_saved()
        return answered

    def go_on(self) -> None:
        """Resume the jobs of a killed engine that may begin again, by spot or RetryStrategy, and end the others."""
        self._training.jobs.go_on()
        self._processing.jobs.go_on()

    def bring_logs(self, group: str, streams: str) -> None:
        """Return once the streams of earlier engines' jobs whose names begin with ``streams`` are in CloudWatch."""
        self._earlier_logs[group].bring(streams)

    def forget_logs(self, group: str, stream: str | None) -> None:
        """Forget the lines of a deleted stream of a log group, or of all its streams if None."""
        self._earlier_logs[group].forget(stream)

    def interrupt(self, job_name: str) -> None:
        """Reclaim the spot instances of a training job, which begins again from its checkpoints.

        Raise ApiError unless the job is a managed spot job in Training.
        """
        self._training.jobs.get(job_name).interrupt()

    def await_change(self, job_name: str, transitions: int, seconds: float) -> None:
        """Wait until a training job has more secondary statuses than ``transitions``, for ``seconds`` at most.

        Raise ApiError if there is no such job.
        """
        self._training.jobs.get(job_name).await_change(transitions, seconds)

    def fail(self, reason: str) -> None:
        """End all running jobs as Failed, and start no more: the platform has lost a part that jobs need."""
        self._tuning.close(f"InternalServerError: {reason}")
        self._training.jobs.fail(reason)
        self._processing.jobs.fail(reason)

    def close(self) -> None:
        """End all jobs at once, saving nothing, and remove their directories."""
        # 1. The tuning jobs first: their threads start no more training jobs.
        # 2. All jobs are told to end before the first one is waited for.
        # 3. Bound: CLOSE_SECONDS for each job; a directory is removed even if its job's thread still runs.
        self._tuning.close("The platform was closed.")
        for jobs in (self._training.jobs, self._processing.jobs):
            jobs.close()
        for jobs in (self._training.jobs, self._processing.jobs):
            jobs.join(CLOSE_SECONDS)
        self._tuning.join(CLOSE_SECONDS)

    def _start_tuned(self, request: Mapping[str, Any]) -> TrainingRecord:
        """Start a training job whose request comes from a tuning job's, and not from `call`."""
        return self._training.start(check_request("CreateTrainingJob", request))

    def _search(self, request: dict[str, Any]) -> dict[str, Any]:
        return search_records(self._searched, request)

    def _searched(self, resource: str) -> Iterable[dict[str, Any]]:
        if resource == "TrainingJob":
            return ({**job.describe(), "Tags": job.describe_tags()} for job in self._training.jobs.all())
        return self._experiments.search_records(resource)

    def _find(self, arn: str) -> Record | None:
        """Return the record of an ARN, or None."""
        return self._find_job(arn) or self._tuning.jobs.find_arn(arn) or self._experiments.find(arn)

    def _find_job(self, arn: str) -> TrainingRecord | ProcessingRecord | None:
        """Return the training or processing job of an ARN, or None."""
        return self._training.jobs.find_arn(arn) or self._processing.jobs.find_arn(arn)
