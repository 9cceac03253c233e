"""Run a local job from its arguments to its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimators import source_code
from estimators.checks import channels
from estimators.checks.channels import local_path
from estimators.errors import EstimatorError
from estimators.local.directory_reaper_process import reaped_directory
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.request import ML_ROOT, LocalFiles
from estimators.local.engine.training.request import DEFAULT_CHECKPOINT_PATH, TrainingRequest
from estimators.local.engine.transfers.objects import FileUri
from estimators.local_mode.run import run
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import JobRequest, with_code
from estimators.source_code import SourceCode
from estimators.training_job import TrainingJob
from smddp.process.interrupt import without_traceback

logger = logging.getLogger(__name__)


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
