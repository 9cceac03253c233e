"""The engine: the operations on training jobs, the jobs there are, and beside them the tuning jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.local.directory_reaper import remove_tree
from estimators.local.engine.earlier_logs import EarlierLogs
from estimators.local.engine.errors import ApiError, invalid, not_found
from estimators.local.engine.job import JobRecord
from estimators.local.engine.job_runner import JobRunner
from estimators.local.engine.job_store import NOTHING_KEPT, JobStore
from estimators.local.engine.listing import list_jobs
from estimators.local.engine.platform import Platform
from estimators.local.engine.request import TrainingRequest, read_tags
from estimators.local.engine.search import search_jobs
from estimators.local.engine.tuning import TuningJobs
from estimators.local.engine.tuning.tuning_job import TuningRecord
from estimators.local.engine.validation import check_request
from estimators.local.executors import Executor, NoImageError
from estimators.service_model import service_model
from smddp.job.failure_report import within_limit

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
_KIND = "training-job"
_READING = ("Describe", "List", "Search")
"""How the names of operations begin that change nothing."""
_MAX_TAGS = 50


class Engine:
    """Runs training jobs on this machine, as SageMaker runs them on AWS.

    Args:
        directory: Where jobs live while they run; it is made if it is not there.
        s3: The client for all data.
        logs: The client for the jobs' logs; its region is the engine's.
        executor: What runs the hosts.
        container_environment: Variables for every host, such as the endpoint and the keys of the platform.
        account_id: The AWS account in the jobs' ARNs.
        grace_seconds: Between SIGTERM and SIGKILL when a job is stopped or interrupted.
        sync_seconds: The pause between two looks at the checkpoint directories.
        rescue: Where the files of a job are left that can't be saved; None: beside ``directory``.
        store: Remembers the jobs, and knows those of earlier engines.
    """

    def __init__(
        self,
        *,
        directory: Path,
        s3: S3Client,
        logs: CloudWatchLogsClient,
        executor: Executor,
        container_environment: Mapping[str, str],
        account_id: str,
        grace_seconds: float = 120,
        sync_seconds: float = 1.0,
        rescue: Path | None = None,
        store: JobStore = NOTHING_KEPT,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        service_model()  # it takes 0.1 s to read: now, and not in the first request
        self._account_id = account_id
        self._platform = Platform(
            directory=directory,
            s3=s3,
            logs=logs,
            executor=executor,
            container_environment=dict(container_environment),
            region=logs.meta.region_name,
            grace_seconds=grace_seconds,
            sync_seconds=sync_seconds,
            rescue=rescue or directory.parent,
            store=store,
        )
        self._store = store
        self._earlier_logs = EarlierLogs(store, logs)
        # Guards the three below, and tags. Order: a job is created under it, and none once there is a refusal: `fail`
        # and `close` set one, and end all jobs that there are then.
        self._lock = threading.Lock()
        self._jobs = store.load(_KIND, JobRecord.from_json)
        self._broken_off = [job for job in self._jobs.values() if not job.ended]
        self._runners: dict[str, JobRunner] = {}
        self._refusal = ""
        self._tuning = TuningJobs(
            self._start, lambda name: self._arn("hyper-parameter-tuning-job", name), store, dict(self._jobs)
        )
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": self._describe,
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DeleteTrainingJob": self._delete,
            "Search": self._search,
            "AddTags": self._add_tags,
            "ListTags": self._list_tags,
            "DeleteTags": self._delete_tags,
            **self._tuning.operations,
        }

    @property
    def operations(self) -> frozenset[str]:
        """The names that `call` answers."""
        return frozenset(self._operations)

    def call(self, operation: str, request: dict[str, Any], *, region: str) -> dict[str, Any]:
        """Answer one request.

        Args:
            operation: One of `operations`.
            request: Its input, as boto3 would take it.
            region: The AWS region that the caller means.

        Returns:
            The output, as boto3 would give it, with times as datetimes.

        Raises:
            ApiError: As AWS would refuse it.
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
        """Go on with the jobs that an earlier engine ran until it was killed: the spot jobs; the others are Failed."""
        for job in self._broken_off:
            last = self._store.last_line_time(job.name)
            said = datetime.fromtimestamp((last or 0) / 1000, timezone.utc)
            if not job.outlive(max(said, job.describe()["LastModifiedTime"])):
                continue
            try:
                runner = JobRunner(job, self._find_image(job.request), self._platform)
            except ApiError as error:
                job.finish(failure_reason=within_limit(f"ClientError: {error.message}"))
                continue
            with self._lock:
                self._runners[job.name] = runner
                runner.start()

    def bring_logs(self, streams: str) -> None:
        """Return once those log streams of earlier engines' jobs whose names begin so are in CloudWatch Logs."""
        self._earlier_logs.bring(streams)

    def forget_logs(self, stream: str | None) -> None:
        """Forget a log stream, or with None all of them: somebody deletes it."""
        self._earlier_logs.forget(stream)

    def interrupt(self, job_name: str) -> None:
        """Reclaim the spot instances of a job that trains: it begins anew from its checkpoints.

        Raises:
            ApiError: If there is no such job, or it is not a managed spot job in Training.
        """
        self._job(job_name).interrupt()

    def fail(self, reason: str) -> None:
        """End all jobs that run as Failed, and start no other: what they need of the platform is gone."""
        self._tuning.close(f"InternalServerError: {reason}")
        with self._lock:
            self._refusal = f"No job can start any more: {reason}"
            jobs = list(self._jobs.values())
        for job in jobs:
            job.platform_failed(f"InternalServerError: {reason}")

    def close(self) -> None:
        """End all jobs at once, saving nothing, and remove their directories."""
        self._tuning.close("The platform was closed.")
        with self._lock:
            self._refusal = "The platform is being closed."
            jobs, runners = list(self._jobs.values()), list(self._runners.values())
        for job in jobs:
            job.close()
        for runner in runners:
            runner.join(CLOSE_SECONDS)
        self._tuning.join(CLOSE_SECONDS)
        for job in jobs:
            remove_tree(self._platform.directory / job.name)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"TrainingJobArn": self._start(request).arn}

    def _start(self, request: Mapping[str, Any]) -> JobRecord:
        parsed = TrainingRequest.parse(request)
        job = JobRecord(parsed, self._arn("training-job", parsed.name), self._store.keeper(_KIND, parsed.name))
        runner = JobRunner(job, self._find_image(parsed), self._platform)
        with self._lock:
            if self._refusal:
                raise ApiError("ServiceUnavailable", self._refusal, 503)
            if parsed.name in self._jobs:
                raise ApiError(
                    "ResourceInUse",
                    "Training job names must be unique within an AWS account and region; there is one named "
                    f"{parsed.name} already.",
                )
            self._store.admit(job)
            self._jobs[parsed.name], self._runners[parsed.name] = job, runner
            runner.start()
        return job

    def _find_image(self, request: TrainingRequest) -> str:
        try:
            return self._platform.executor.find_image(request.image)
        except NoImageError as error:
            raise invalid(f"AlgorithmSpecification.TrainingImage: {error}") from error

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._job(request["TrainingJobName"]).describe()

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        return list_jobs((job.summary() for job in self._all()), request)

    def _search(self, request: dict[str, Any]) -> dict[str, Any]:
        return search_jobs(({**job.describe(), "Tags": _tag_list(job)} for job in self._all()), request)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._job(request["TrainingJobName"]).stop()
        return {}

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._job(request["TrainingJobName"])
        job.update({name: value for name, value in request.items() if name != "TrainingJobName"})
        return {"TrainingJobArn": job.arn}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        job = self._job(name)
        if not job.ended:
            raise ApiError("ResourceInUse", f"{name} has not ended; stop it before it is deleted.")
        if name in self._runners:  # an earlier engine's has none
            self._runners[name].join()
        with self._lock:
            self._jobs.pop(name, None)
            self._runners.pop(name, None)
            job.forget()
        return {}

    def _add_tags(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._tagged(request["ResourceArn"])
        added = read_tags(request["Tags"])
        with self._lock:
            if len(job.tags | added) > _MAX_TAGS:
                raise invalid(f"{job.name} would have {len(job.tags | added)} tags; {_MAX_TAGS} is the limit.")
            job.tags.update(added)
            job.note()
        return {"Tags": _tag_list(job)}

    def _list_tags(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": _tag_list(self._tagged(request["ResourceArn"]))}

    def _delete_tags(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._tagged(request["ResourceArn"])
        with self._lock:
            for key in request["TagKeys"]:
                job.tags.pop(key, None)
            job.note()
        return {}

    def _all(self) -> list[JobRecord]:
        with self._lock:
            return list(self._jobs.values())

    def _job(self, name: str) -> JobRecord:
        job = self._jobs.get(name)
        if job is None:
            raise not_found(name)
        return job

    def _tagged(self, arn: str) -> JobRecord | TuningRecord:
        """Return the job of either kind that has an ARN."""
        job = self._jobs.get(arn.rpartition("/")[2])
        if job is not None and job.arn == arn:
            return job
        if tuning := self._tuning.of_arn(arn):
            return tuning
        raise not_found(arn)

    def _arn(self, kind: str, name: str) -> str:
        return f"arn:aws:sagemaker:{self._platform.region}:{self._account_id}:{kind}/{name}"


def _tag_list(job: JobRecord | TuningRecord) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in list(job.tags.items())]
