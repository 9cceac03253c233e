"""The engine: the operations on training, tuning and processing jobs, experiments and tags."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.local.chaos import Chaos
from estimators.local.engine.earlier_logs import EarlierLogs
from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.experiments import Experiments, JobToTrack
from estimators.local.engine.hosted_jobs import HostedJobs
from estimators.local.engine.job import JobRecord
from estimators.local.engine.job_store import NOTHING_KEPT, JobStore
from estimators.local.engine.listing import list_jobs
from estimators.local.engine.logs import LOG_GROUPS, TRAINING_JOBS
from estimators.local.engine.platform import Platform
from estimators.local.engine.processing import ProcessingJobs
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.engine.request import TrainingRequest
from estimators.local.engine.search import search_records
from estimators.local.engine.tags import Tagged, Tags, tag_list
from estimators.local.engine.training_runner import TrainingRunner
from estimators.local.engine.tuning import TuningJobs
from estimators.local.engine.validation import check_request
from estimators.local.executors import Executor, NoImageError
from estimators.service_model import service_model

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
_READING = ("Describe", "List", "Search")
"""Prefixes of the names of read-only operations."""


class Engine:
    """Runs jobs on this machine, as SageMaker runs them on AWS."""

    def __init__(
        self,
        *,
        directory: Path,  # of running jobs; made if absent
        s3: S3Client,
        logs: CloudWatchLogsClient,  # its region is the engine's
        cloudwatch: CloudWatchClient,
        executor: Executor,
        container_environment: Mapping[str, str],  # variables for every host, such as the platform's endpoint and keys
        account_id: str,
        grace_seconds: float = 120,  # between SIGTERM and SIGKILL
        sync_seconds: float = 1.0,  # between two scans of directories that are copied to S3 while hosts run
        rescue: Path | None = None,  # where a job's files go if they can't be uploaded; None: beside `directory`
        store: JobStore = NOTHING_KEPT,
        chaos: Chaos | None = None,  # faults for all jobs; None: only those of a job's tag
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        service_model()  # takes 0.1 s to read: now, not in the first request
        self._arn_prefix = f"arn:aws:sagemaker:{logs.meta.region_name}:{account_id}"
        self._platform = Platform(
            directory=directory,
            s3=s3,
            logs=logs,
            cloudwatch=cloudwatch,
            executor=executor,
            container_environment=dict(container_environment),
            region=logs.meta.region_name,
            grace_seconds=grace_seconds,
            sync_seconds=sync_seconds,
            rescue=rescue or directory.parent,
            store=store,
            chaos=chaos or Chaos(),
        )
        self._store = store
        self._earlier_logs = {group: EarlierLogs(group, store, logs) for group in LOG_GROUPS}
        self._jobs = HostedJobs(
            "training-job", "training job", TRAINING_JOBS, store, JobRecord.from_json, self._make_runner
        )
        self._tuning = TuningJobs(
            self._start,
            lambda name: self._arn("hyper-parameter-tuning-job", name),
            store,
            {job.name: job for job in self._jobs.all()},
        )
        self._experiments = Experiments(self._arn_prefix, store, self._find_job)
        self._processing = ProcessingJobs(
            self._platform, lambda name: self._arn("processing-job", name), self._experiments
        )
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": self._describe,
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DeleteTrainingJob": self._delete,
            "Search": self._search,
            **self._tuning.operations,
            **self._processing.operations,
            **self._experiments.operations,
            **Tags(self._find).operations,
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
            self._store.require_saved()
        return answered

    def go_on(self) -> None:
        """Resume the jobs of a killed engine that may begin again, by spot or RetryStrategy, and end the others."""
        self._jobs.go_on()
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
        self._jobs.get(job_name).interrupt()

    def fail(self, reason: str) -> None:
        """End all running jobs as Failed, and start no more: the platform has lost a part that jobs need."""
        self._tuning.close(f"InternalServerError: {reason}")
        self._jobs.fail(reason)
        self._processing.jobs.fail(reason)

    def close(self) -> None:
        """End all jobs at once, saving nothing, and remove their directories."""
        # 1. The tuning jobs first: their threads start no more training jobs.
        # 2. All jobs are told to end before the first one is waited for.
        # 3. Bound: CLOSE_SECONDS for each job; a directory is removed even if its job's thread still runs.
        self._tuning.close("The platform was closed.")
        for jobs in (self._jobs, self._processing.jobs):
            jobs.close()
        for jobs in (self._jobs, self._processing.jobs):
            jobs.join(CLOSE_SECONDS)
        self._tuning.join(CLOSE_SECONDS)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"TrainingJobArn": self._start(request).arn}

    def _start(self, request: Mapping[str, Any]) -> JobRecord:
        parsed = TrainingRequest.parse(request)
        arn = self._arn("training-job", parsed.name)
        with self._experiments.track(JobToTrack(request=parsed, arn=arn)):
            return self._jobs.start(parsed.name, lambda saver: JobRecord(parsed, arn, saver))

    def _make_runner(self, job: JobRecord) -> TrainingRunner:
        try:
            image = self._platform.executor.find_image(job.request.image)
        except NoImageError as error:
            raise invalid(f"AlgorithmSpecification.TrainingImage: {error}") from error
        return TrainingRunner(job, image, self._platform)

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._jobs.get(request["TrainingJobName"]).describe()

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return list_jobs((job.summary() for job in self._jobs.all()), request)

    def _search(self, request: dict[str, Any]) -> dict[str, Any]:
        return search_records(self._searched, request)

    def _searched(self, resource: str) -> Iterable[dict[str, Any]]:
        if resource == "TrainingJob":
            return ({**job.describe(), "Tags": tag_list(job)} for job in self._jobs.all())
        return self._experiments.search_records(resource)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.get(request["TrainingJobName"]).stop()
        return {}

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._jobs.get(request["TrainingJobName"])
        job.update({name: value for name, value in request.items() if name != "TrainingJobName"})
        return {"TrainingJobArn": job.arn}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        self._experiments.settle(self._jobs.get(request["TrainingJobName"]).arn)
        self._jobs.delete(request["TrainingJobName"])
        return {}

    def _find(self, arn: str) -> Tagged | None:
        """Return the job, experiment, trial or trial component of an ARN, or None."""
        tuning = self._tuning.find(arn.rpartition("/")[2])
        is_tuning = tuning is not None and tuning.arn == arn
        return self._find_job(arn) or (tuning if is_tuning else self._experiments.find(arn))

    def _find_job(self, arn: str) -> JobRecord | ProcessingRecord | None:
        """Return the training or processing job of an ARN, or None."""
        name = arn.rpartition("/")[2]
        found = (self._jobs.find(name), self._processing.jobs.find(name))
        return next((job for job in found if job is not None and job.arn == arn), None)

    def _arn(self, kind: str, name: str) -> str:
        return f"{self._arn_prefix}:{kind}/{name}"
