"""The operations on processing jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments import Experiments, JobToTrack
from estimators.local.engine.hosted.jobs_of_kind import HostedRecords
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.listing import list_jobs
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.engine.processing.request import ProcessingRequest
from estimators.local.engine.processing.runner import ProcessingRunner
from estimators.local.engine.validation import Handler
from estimators.local.executors import NoImageError

_NAME = "ProcessingJobName"
_SUMMARY = (
    _NAME,
    "ProcessingJobArn",
    "CreationTime",
    "ProcessingEndTime",
    "LastModifiedTime",
    "ProcessingJobStatus",
    "FailureReason",
    "ExitMessage",
)


class ProcessingOperations:
    """Answers requests about processing jobs, each of which has a trial component."""

    def __init__(self, platform: Platform, arn_prefix: str, experiments: Experiments) -> None:
        self._platform = platform
        self._experiments = experiments
        self.jobs = HostedRecords(ProcessingRecord, arn_prefix, platform.store, self._make_runner)
        self.operations: Mapping[str, Handler] = {
            "CreateProcessingJob": self._create,
            "DescribeProcessingJob": lambda request: self._job(request).describe(),
            "ListProcessingJobs": self._list,
            "StopProcessingJob": self._stop,
            "DeleteProcessingJob": self._delete,
        }

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        parsed = ProcessingRequest.read(request)
        job = ProcessingRecord(parsed, self.jobs.arn(parsed.name))
        with self._experiments.track(JobToTrack(request=parsed, arn=job.arn)):
            self.jobs.run(job)
        return {"ProcessingJobArn": job.arn}

    def _make_runner(self, job: ProcessingRecord) -> ProcessingRunner:
        executor = self._platform.executor
        if executor.no_opt_ml is not None:
            raise invalid(
                f"A processing job's program needs /opt/ml, which it does not have here, because {executor.no_opt_ml}: "
                "start the platform with executor=Docker(…)."
            )
        if executor.python is not None and not job.request.entrypoint:
            raise invalid(
                "AppSpecification.ContainerEntrypoint is missing, and no image is run here whose program it could be; "
                "give the program, or start the platform with executor=Docker(…)."
            )
        try:
            image = executor.find_image(job.request.image)
        except NoImageError as error:
            raise invalid(f"AppSpecification.ImageUri: {error}") from error
        return ProcessingRunner(job, image, self._platform)

    def _job(self, request: Mapping[str, Any]) -> ProcessingRecord:
        return self.jobs.get(request[_NAME])

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        jobs = (job.summary() for job in self.jobs.all())
        return list_jobs(jobs, request, word="ProcessingJob", members=_SUMMARY, sort_by="CreationTime")

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._job(request).stop()
        return {}

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._job(request)
        self._experiments.settle(job.arn)
        self.jobs.delete(job)
        return {}
