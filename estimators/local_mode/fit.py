"""Run a local job from its arguments to its end, by the platform's engine and its Docker executor.

It runs in this process, without a server. The user's own session transfers the files on S3. If this process is killed,
the containers get their time to save, and are removed with all files of the job (``container_reaper``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from estimators import source_code
from estimators.checks import channels
from estimators.checks.channels import local_path
from estimators.docker.docker_program import DockerError, require_engine, require_image
from estimators.errors import EstimatorError, shown_reason
from estimators.job_handle.service import EndedLocalJob
from estimators.job_handle.view import LogView
from estimators.local.directory_reaper_process import Lifeline, reaped_directory
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.hosted.request import ML_ROOT, LocalFiles
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import DEFAULT_CHECKPOINT_PATH, TrainingRequest
from estimators.local.engine.training.runner import TrainingRunner
from estimators.local.engine.transfers.objects import FileUri
from estimators.local.executors.docker import Docker, DockerExecutor
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import JobRequest, with_code
from estimators.source_code import SourceCode
from estimators.training_job import TrainingJob
from smddp.process.interrupt import without_traceback

if TYPE_CHECKING:
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)

STOP_SECONDS = 120
"""Seconds for a host to save a checkpoint when the job is stopped, as on SageMaker."""
_STOPPING = (
    "stopping: each container has %d s to save a checkpoint, and is then removed. Ctrl-C again removes it at once"
)


def fit(job: CompletedJob, built: JobRequest, *, inputs: Any, logs: bool) -> TrainingJob:
    """Run a job, whose request a plan has checked, to its end, and return its handle.

    The job uses the S3 of the request's session. Raise EstimatorError if no Docker engine answers, the image can't be
    had, or the platform refuses the job; TrainingJobFailed or TrainingJobStopped if the job ends so; KeyboardInterrupt
    after Ctrl-C, once the hosts have saved what they could.
    """
    from estimators.sdk import request_values

    arguments, source = job.arguments, job.source
    with _ending_quietly(), reaped_directory("smddp-local-mode") as (directory, lifeline):
        no_code = [*_RUNS.glob("*/*.tar.gz"), *filter(None, [local_path(arguments.get("checkpoint_s3_uri"))])]
        if source.git is not None:
            source = SourceCode.of(request_values.cloned(arguments))
        code = source_code.stage(source, into=directory / "code", without=no_code, more=job.bundled.files).source
        request = training_request(built, arguments, inputs, code=code)
        logger.info("running training job %s in containers, its output goes to %s", request.name, request.output)
        gpus = arguments["instance_type"] == "local_gpu"
        ended = run(request, session=built.session, gpus=gpus, logs=logs, directory=directory, lifeline=lifeline)
    ended.require_completed(ended.describe())
    return ended


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """Let Python show no traceback after Ctrl-C: a log line has told what happens to the containers."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        without_traceback(interrupt)
        raise


_RUNS = Path("runs")
"""Directory of the models of jobs without an output path, each in a directory of the job's name."""


def training_request(
    built: JobRequest, arguments: Mapping[str, Any], inputs: Any, *, code: SourceCode
) -> TrainingRequest:
    """Return the request of a local job with its places on this machine; `code` is staged for the containers, or on S3.

    Raise EstimatorError if the platform refuses the job.
    """
    data = {name: channels.local_path(channels.uri_of(place)) for name, place in channels.by_name(inputs).items()}
    local = {name: path for name, path in data.items() if path is not None}
    checkpoints = channels.local_path(arguments.get("checkpoint_s3_uri"))
    output = channels.local_path(arguments.get("output_path"))
    in_container = str(code.source_dir) if not code.is_local else str(ML_ROOT / "code")
    try:
        request = TrainingRequest.parse(with_code(built.members, in_container))
    except ApiError as fault:
        raise EstimatorError(f"The local platform refuses the job: {fault.message}") from fault
    if "output_path" not in arguments:
        output = _RUNS.absolute() / request.name
    (group,) = (replace(group, instance_type=arguments["instance_type"]) for group in request.groups)
    shown = {
        "ResourceConfig": {"InstanceType": group.instance_type, "InstanceCount": group.count},
        **({"OutputDataConfig": {"S3OutputPath": f"file://{output}"}} if output else {}),
        **({"CheckpointConfig": {"S3Uri": f"file://{checkpoints}"}} if checkpoints else {}),
    }
    return replace(
        request,
        preferences=((group,),),
        output=FileUri(path=output) if output else request.output,
        members={**request.members, **shown},
        files=LocalFiles(
            code=Path(str(code.source_dir)) if code.is_local else None,
            channels=local,
            checkpoints=checkpoints,
            checkpoint_path=arguments.get("checkpoint_local_path", DEFAULT_CHECKPOINT_PATH),
        ),
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
            logger.error("%s failed: %s", record.name, shown_reason(reason))
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
