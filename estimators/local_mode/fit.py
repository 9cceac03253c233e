"""Run a local job from its arguments to its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimators import source_code
from estimators.checks.channels import local_path
from estimators.large_hyperparameters import carry
from estimators.local.directory_reaper_process import reaped_directory
from estimators.local_mode.job import LocalModeJob
from estimators.local_mode.request import RUNS, training_request
from estimators.local_mode.run import run

if TYPE_CHECKING:
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)


def fit(
    arguments: Mapping[str, Any],
    *,
    image: str,
    inputs: Any,
    session: Session,
    logs: bool,
    job_name: str | None,
) -> LocalModeJob:
    """Run a job to its end, and return its handle.

    ``arguments`` are parameters of ``PyTorch`` that a plan has checked. The job uses the S3 of ``session``. Raise
    EstimatorError if no Docker engine answers, the image can't be had, or the SDK or the platform refuses the job;
    TrainingJobFailed or TrainingJobStopped if the job ends so; KeyboardInterrupt after Ctrl-C, once the hosts have
    saved what they could.
    """
    from estimators.sdk import request_values

    with reaped_directory("smddp-local-mode") as (directory, lifeline):
        no_code = [*RUNS.glob("*/*.tar.gz"), *filter(None, [local_path(arguments.get("checkpoint_s3_uri"))])]
        source = source_code.SourceCode.of(request_values.cloned(arguments))
        carried = carry(arguments)
        code = source_code.stage(source, into=directory / "code", without=no_code, more=carried.files).source
        request = training_request(
            carried.arguments, inputs, image=image, code=code, job_name=job_name, session=session
        )
        logger.info("running training job %s in containers, its output goes to %s", request.name, request.output)
        gpus = arguments["instance_type"] == "local_gpu"
        job = run(request, session=session, gpus=gpus, logs=logs, directory=directory, lifeline=lifeline)
    job.require_completed(job.describe())
    return job
