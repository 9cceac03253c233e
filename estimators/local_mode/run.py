"""Run one local job to its end, by the platform's engine and its Docker executor, in this process, without a server.

The user's own session transfers the files on S3. If this process is killed, the containers get their time to save, and
are removed with all files of the job (``container_reaper``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from estimators.docker.docker_program import DockerError, require_engine, require_image
from estimators.errors import EstimatorError
from estimators.job_handle.service import EndedLocalJob
from estimators.job_handle.view import LogView
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.training.runner import TrainingRunner
from estimators.local.executors.docker import Docker, DockerExecutor
from estimators.training_job import TrainingJob
from smddp.safe_text import shown_text

if TYPE_CHECKING:
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)

STOP_SECONDS = 120
"""Seconds for a host to save a checkpoint when the job is stopped, as on SageMaker."""
_STOPPING = (
    "stopping: each container has %d s to save a checkpoint, and is then removed. Ctrl-C again removes it at once"
)


def run(
    request: TrainingRequest, *, session: Session, gpus: bool, logs: bool, directory: Path, lifeline: Lifeline
) -> TrainingJob:
    """Run a job to its end, and return its handle.

    ``lifeline`` belongs to ``directory``, the job's own. Raise EstimatorError if no Docker engine answers or the image
    can't be had; KeyboardInterrupt after Ctrl-C, once the hosts have saved what they could.
    """
    from estimators.sdk import sessions

    executor = DockerExecutor(Docker(gpus=gpus), lifeline=lifeline, orphan_seconds=STOP_SECONDS)
    try:
        require_engine()
        require_image(request.image, session.boto_session)
        image = executor.find_image(request.image)
    except DockerError as fault:
        raise EstimatorError(
            f"instance_type: a local job runs in Docker containers. {fault} "
            "Without Docker, estimators.local.LocalSageMaker runs jobs as processes."
        ) from fault
    s3 = sessions.s3_client(session)
    log: Any = _ShownLog(LogView() if logs else None)
    platform = Platform(
        directory=directory / "jobs",
        s3=s3,
        logs=log,
        executor=executor,
        container_environment=access(session, s3.meta.endpoint_url),
        region=session.boto_region_name,
        grace_seconds=STOP_SECONDS,
        sync_seconds=0.1,
        rescue=directory.parent,
    )
    platform.directory.mkdir()
    if request.files is not None and request.files.checkpoints is not None:
        request.files.checkpoints.mkdir(parents=True, exist_ok=True)
    record = TrainingRecord(request, f"arn:aws:sagemaker:{platform.region}:{'0' * 12}:training-job/{request.name}")
    run_to_its_end(record, TrainingRunner(record, image, platform))
    return TrainingJob(record.name, EndedLocalJob(record.name, record.describe(), s3))


def run_to_its_end(record: TrainingRecord, runner: TrainingRunner) -> None:
    """Run a job to its end; if Ctrl-C or a handler of the user's interrupts it, leave no host running."""
    try:
        runner.start()
        runner.join()
    except BaseException:
        try:
            # 1. The first interruption stops the job: each host has STOP_SECONDS to save a checkpoint.
            # 2. A second one, during the stop, ends the hosts at once.
            # 3. Both go on to the caller, after the hosts have ended.
            logger.warning(_STOPPING, STOP_SECONDS)
            with suppress(ApiError):  # the job has ended meanwhile
                record.stop()
            runner.join()
        except BaseException:
            logger.warning("removing the containers at once")
            record.close()
            runner.join()
            raise
        job = EndedLocalJob(record.name, record.describe())
        if reason := job.describe().get("FailureReason"):
            logger.error("%s failed: %s", record.name, shown_text(reason))
        logger.warning("%s was interrupted, its containers are removed%s", record.name, job.how_to_resume)
        raise


def access(session: Session, s3_endpoint: str) -> dict[str, str]:
    """Return the variables by which a host reaches S3 as the user does: the endpoint and the keys."""
    found = {}
    if not (urlsplit(s3_endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        found["AWS_ENDPOINT_URL_S3"] = s3_endpoint
    credentials = session.boto_session.get_credentials()
    if credentials is None:
        return found
    if credentials.method == "iam-role":  # this machine's role: a host gets and renews its keys itself
        return {**found, "AWS_EC2_METADATA_DISABLED": "false"}
    keys = credentials.get_frozen_credentials()
    token = {"AWS_SESSION_TOKEN": keys.token} if keys.token else {}
    return {**found, "AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key, **token}


class _ShownLog:
    """A job's CloudWatch Logs: shows each line as it comes, and keeps none."""

    def __init__(self, view: LogView | None) -> None:
        self._view = view

    def create_log_group(self, **_names: str) -> None:
        """Do nothing: lines are shown, and not kept."""

    create_log_stream = create_log_group

    def put_log_events(self, *, logStreamName: str, logEvents: list[Mapping[str, Any]], **_group: str) -> None:  # noqa: N803 - boto3's names
        """Show the lines of one host."""
        host = logStreamName.rpartition("/")[2].rpartition("-")[0]
        if self._view is None:
            return
        try:
            for event in logEvents:
                self._view.show_line(host, event["message"])
        except BrokenPipeError:  # the reader of the output is gone; the job goes on
            self._view = None
