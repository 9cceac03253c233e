"""A job as ``sagemaker.train.ModelTrainer``: its request without the data channels, which go to ``ModelTrainer.train``.

ModelTrainer has its own way to start scripts. It gets no script here, only the hyperparameters of AWS's training
toolkit, which AWS's and smddp's images contain: so it sends the same request as ``fit``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sagemaker.core import shapes
from sagemaker.core.utils.utils import pascal_to_snake
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, Networking

from estimators.errors import EstimatorError
from estimators.sdk.v3.request import ResolvedJob

logger = logging.getLogger(__name__)

_JOB_NAME = "sagemaker_job_name"
"""A hyperparameter of the toolkit that is omitted, because ModelTrainer generates each job's name."""
_NETWORKING = ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption")
_HELD = frozenset(
    {
        *("AlgorithmSpecification", "CheckpointConfig", "EnableManagedSpotTraining", "Environment", "HyperParameters"),
        *("InfraCheckConfig", "InputDataConfig", "OutputDataConfig", "RemoteDebugConfig", "ResourceConfig"),
        *("RetryStrategy", "RoleArn", "SessionChainingConfig", "StoppingCondition", "Tags", "TensorBoardOutputConfig"),
        *("TrainingJobName", "VpcConfig", *_NETWORKING),
    }
)
_HELD_OF_ALGORITHM = frozenset({"TrainingImage", "TrainingImageConfig", "TrainingInputMode", "MetricDefinitions"})
_TIME_SERIES = "EnableSageMakerMetricsTimeSeries"


def model_trainer(job: ResolvedJob, code: Callable[[], tuple[str, str]]) -> ModelTrainer:
    """Return a job's ModelTrainer, or raise EstimatorError if ModelTrainer can't hold a member of the request.

    `code` uploads the code, and returns its S3 URI and script.
    """
    _require_held(job, _request(job, ("s3://bucket/sourcedir.tar.gz", "script.py")))
    return _built(job, _request(job, code()))


def _request(job: ResolvedJob, code: tuple[str, str]) -> dict[str, Any]:
    return job.request(None, code=code, experiment_config=None, upload=lambda path, _rule: path)


def _require_held(job: ResolvedJob, request: Mapping[str, Any]) -> None:
    lost = {name: value for name, value in request.items() if name not in _HELD}
    algorithm = request["AlgorithmSpecification"]
    lost |= {name: value for name, value in algorithm.items() if name not in _HELD_OF_ALGORITHM}
    chosen_by_default = {
        "ProfilerConfig": {"DisableProfiler": True},
        **({_TIME_SERIES: True} if job.parameters.enable_sagemaker_metrics is None else {}),
    }
    wanted = sorted(name for name, value in lost.items() if chosen_by_default.get(name) != value)
    if wanted:
        raise EstimatorError(
            f"A ModelTrainer of the SageMaker Python SDK V3 can't hold {', '.join(wanted)} of the job's request. Leave "
            "out the parameters that ask for it, or use fit(), which sends it."
        )
    if lost:
        logger.warning("ModelTrainer does not support %s: the API's own defaults apply", ", ".join(sorted(lost)))


def _built(job: ResolvedJob, request: dict[str, Any]) -> ModelTrainer:
    algorithm = request["AlgorithmSpecification"]
    networking = {**request.get("VpcConfig", {}), **{name: request[name] for name in _NETWORKING if name in request}}
    trainer = ModelTrainer(
        sagemaker_session=job.session,
        role=request["RoleArn"],
        base_job_name=job.base_name,
        training_image=algorithm["TrainingImage"],
        training_image_config=shape(shapes.TrainingImageConfig, algorithm.get("TrainingImageConfig")),
        training_input_mode=algorithm["TrainingInputMode"],
        hyperparameters={name: text for name, text in request["HyperParameters"].items() if name != _JOB_NAME},
        input_data_config=[shape(shapes.Channel, channel) for channel in request.get("InputDataConfig", ())] or None,
        output_data_config=shape(shapes.OutputDataConfig, request["OutputDataConfig"]),
        checkpoint_config=shape(shapes.CheckpointConfig, request.get("CheckpointConfig")),
        compute=Compute(
            **_snake(request["ResourceConfig"]),
            enable_managed_spot_training=request.get("EnableManagedSpotTraining"),
        ),
        networking=shape(Networking, networking or None),
        stopping_condition=shape(shapes.StoppingCondition, request["StoppingCondition"]),
        environment=request.get("Environment", {}),
        tags=[shape(shapes.Tag, tag) for tag in request.get("Tags", ())] or None,
    )
    if definitions := algorithm.get("MetricDefinitions"):
        trainer.with_metric_definitions([shape(shapes.MetricDefinition, each) for each in definitions])
    for member, kind, take in (
        ("RetryStrategy", shapes.RetryStrategy, trainer.with_retry_strategy),
        ("InfraCheckConfig", shapes.InfraCheckConfig, trainer.with_infra_check_config),
        ("RemoteDebugConfig", shapes.RemoteDebugConfig, trainer.with_remote_debug_config),
        ("SessionChainingConfig", shapes.SessionChainingConfig, trainer.with_session_chaining_config),
        ("TensorBoardOutputConfig", shapes.TensorBoardOutputConfig, trainer.with_tensorboard_output_config),
    ):
        if member in request:
            take(shape(kind, request[member]))
    return trainer


def shape(kind: Any, members: Mapping[str, Any] | None) -> Any:
    """Return one of the SDK's shapes from the request's form, or None for None."""
    return None if members is None else kind(**_snake(members))


def _snake(value: Any) -> Any:
    """Return a structure of the request with the member names of the SDK's shapes."""
    if isinstance(value, Mapping):
        return {pascal_to_snake(name): _snake(item) for name, item in value.items()}
    return [_snake(item) for item in value] if isinstance(value, list | tuple) else value
