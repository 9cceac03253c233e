"""Run a local job from its arguments to its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators import source_code
from estimators.checks import channels
from estimators.checks.channels import local_path
from estimators.checks.local_jobs import ONLY_SAGEMAKER
from estimators.errors import EstimatorError
from estimators.local.directory_reaper_process import reaped_directory
from estimators.local.engine.errors import ApiError
from estimators.local.engine.hosted.request import ML_ROOT, LocalFiles
from estimators.local.engine.training.request import DEFAULT_CHECKPOINT_PATH, TrainingRequest
from estimators.local.engine.transfers.objects import FileUri
from estimators.local_mode.job import LocalModeJob
from estimators.local_mode.run import run
from estimators.local_mode.sdk_arguments import UNUSED_ROLE
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import build, with_code
from estimators.source_code import SourceCode

if TYPE_CHECKING:
    from estimators.sdk.library import Session


logger = logging.getLogger(__name__)


def fit(
    job: CompletedJob,
    *,
    image: str,
    inputs: Any,
    session: Session,
    logs: bool,
    job_name: str | None,
) -> LocalModeJob:
    """Run a job to its end, and return its handle.

    A plan has checked the job. It uses the S3 of ``session``. Raise
    EstimatorError if no Docker engine answers, the image can't be had, or the SDK or the platform refuses the job;
    TrainingJobFailed or TrainingJobStopped if the job ends so; KeyboardInterrupt after Ctrl-C, once the hosts have
    saved what they could.
    """
    from estimators.sdk import request_values

    arguments, source = job.arguments, job.source
    with reaped_directory("smddp-local-mode") as (directory, lifeline):
        no_code = [*_RUNS.glob("*/*.tar.gz"), *filter(None, [local_path(arguments.get("checkpoint_s3_uri"))])]
        if source.git is not None:
            source = SourceCode.of(request_values.cloned(arguments))
        code = source_code.stage(source, into=directory / "code", without=no_code, more=job.bundled.files).source
        request = training_request(arguments, inputs, image=image, code=code, job_name=job_name, session=session)
        logger.info("running training job %s in containers, its output goes to %s", request.name, request.output)
        gpus = arguments["instance_type"] == "local_gpu"
        ended = run(request, session=session, gpus=gpus, logs=logs, directory=directory, lifeline=lifeline)
    ended.require_completed(ended.describe())
    return ended


_RUNS = Path("runs")
"""Directory of the models of jobs without an output path, each in a directory of the job's name."""
_INSTANCE_TYPE = "ml.m5.large"
"""Replaces "local" in the request, because the API's model does not know "local"."""


def training_request(
    arguments: Mapping[str, Any], inputs: Any, *, image: str, code: SourceCode, job_name: str | None, session: Session
) -> TrainingRequest:
    """Return the request of a local job.

    ``code`` is staged for the containers, or is on S3; the region and defaults come from ``session``. Raise
    EstimatorError if the SDK or the platform refuses the job.
    """
    data = {name: channels.local_path(channels.uri_of(place)) for name, place in channels.by_name(inputs).items()}
    local = {name: path for name, path in data.items() if path is not None}
    checkpoints = channels.local_path(arguments.get("checkpoint_s3_uri"))
    output = channels.local_path(arguments.get("output_path"))
    here = {
        "checkpoint_s3_uri": checkpoints,
        "checkpoint_local_path": checkpoints,
        "output_path": output,
        "enable_network_isolation": True,  # with it, the SDK would send the code as a channel
    }
    omitted = {"source_dir", "dependencies", "git_config", *ONLY_SAGEMAKER} | {name for name in here if here[name]}
    sdks = {name: value for name, value in arguments.items() if name not in omitted} | code.arguments
    sdks |= {"instance_type": _INSTANCE_TYPE, "image_uri": image, "role": arguments.get("role") or UNUSED_ROLE}
    sdks["debugger_hook_config"] = False  # the SDK's default sends tensors to S3, which a local job need not have
    in_container = str(code.source_dir) if not code.is_local else str(ML_ROOT / "code")
    remote = {name: place for name, place in channels.by_name(inputs).items() if name not in local}
    built, refusal = build(sdks, remote or None, script=str(code.entry_point), job_name=job_name, session=session)
    if built is None:
        raise EstimatorError(f"The SageMaker SDK refuses the job: {refusal}")
    isolated = arguments.get("enable_network_isolation") is True
    try:
        request = TrainingRequest.parse({**with_code(built.members, in_container), "EnableNetworkIsolation": isolated})
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
        ways=((group,),),
        output=FileUri(path=output) if output else request.output,
        members={**request.members, **shown},
        files=LocalFiles(
            code=Path(str(code.source_dir)) if code.is_local else None,
            channels=local,
            checkpoints=checkpoints,
            checkpoint_path=arguments.get("checkpoint_local_path", DEFAULT_CHECKPOINT_PATH),
        ),
    )
