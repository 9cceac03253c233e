"""A local job from its description to its end."""

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
    """Run a job to its end.

    Args:
        arguments: The parameters for ``PyTorch``, which a plan has found nothing wrong with.
        image: The image of its hosts.
        inputs: The channels.
        session: Whose S3 the job has.
        logs: Whether to show the hosts' lines.
        job_name: The job's name; None makes one.

    Raises:
        EstimatorError: No Docker engine answers, the image can't be had, or the SDK or the platform refuses the job.
        TrainingJobFailed: The job failed; its reason says where, and why.
        TrainingJobStopped: It was stopped, not by Ctrl-C.
        KeyboardInterrupt: Ctrl-C; the hosts were stopped, and have saved what they could.
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
