"""The parameters of V2's ``PyTorch``, with its defaults and checks, and values from the user's SDK configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version
from sagemaker.core.common_utils import instance_supports_kms
from sagemaker.core.config import config_schema

from estimators.errors import EstimatorError
from estimators.instances import BEYOND_PYTORCH
from estimators.sdk.library import fw_utils, get_config_value
from estimators.sdk.training_images import Framework, validated_distribution

if TYPE_CHECKING:
    from estimators.sdk.library import Session

SESSION = "sagemaker_session"
"""The parameter that is passed separately."""

_WITH_METRICS = Version("1.3")
"""Since this version of PyTorch, the API stores a job's metrics as time series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of V2's ``sagemaker.pytorch.PyTorch``, under its names; see its documentation."""

    entry_point: str | None = None
    source_dir: str | None = None
    dependencies: Sequence[str] | None = None
    git_config: Mapping[str, str] | None = None
    code_location: str | None = None
    hyperparameters: Mapping[str, Any] | None = None
    distribution: Mapping[str, Any] | None = None
    framework_version: str | None = None
    py_version: str | None = None
    image_uri: str | None = None
    compiler_config: Any = None
    training_recipe: str | None = None
    recipe_overrides: Mapping[str, Any] | None = None
    role: str | None = None
    instance_count: int | None = None
    instance_type: str | None = None
    instance_groups: Sequence[Any] | None = None
    instance_placement_config: Mapping[str, Any] | None = None
    training_plan: str | None = None
    keep_alive_period_in_seconds: int | None = None
    volume_size: int = 30
    volume_kms_key: str | None = None
    max_run: int = 24 * 60 * 60
    max_wait: int | None = None
    max_retry_attempts: int | None = None
    use_spot_instances: bool = False
    input_mode: str = "File"
    output_path: str | None = None
    output_kms_key: str | None = None
    disable_output_compression: bool = False
    base_job_name: str | None = None
    tags: Any = None
    subnets: Sequence[str] | None = None
    security_group_ids: Sequence[str] | None = None
    encrypt_inter_container_traffic: bool | None = None
    enable_network_isolation: bool | None = None
    model_uri: str | None = None
    model_channel_name: str = "model"
    checkpoint_s3_uri: str | None = None
    checkpoint_local_path: str | None = None
    metric_definitions: Sequence[Mapping[str, str]] | None = None
    enable_sagemaker_metrics: bool | None = None
    rules: Sequence[Any] | None = None
    debugger_hook_config: Any = None
    tensorboard_output_config: Any = None
    profiler_config: Any = None
    disable_profiler: bool | None = None
    environment: Mapping[str, str] | None = None
    container_log_level: int = 20
    container_entry_point: Sequence[str] | None = None
    container_arguments: Sequence[str] | None = None
    training_repository_access_mode: str | None = None
    training_repository_credentials_provider_arn: str | None = None
    enable_infra_check: bool | None = None
    enable_remote_debug: bool | None = None
    enable_session_tag_chaining: bool | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session) -> Parameters:
        """Return a job's parameters, completed from the user's SDK configuration.

        Raise EstimatorError if a parameter needs V2, and ValueError if V2's ``PyTorch`` would refuse it.
        """
        given = cls(**arguments)
        _check(given)
        schema = config_schema
        given = _with_configured(
            given,
            session,
            role=schema.TRAINING_JOB_ROLE_ARN_PATH,
            output_kms_key=schema.TRAINING_JOB_KMS_KEY_ID_PATH,
            subnets=schema.TRAINING_JOB_SUBNETS_PATH,
            security_group_ids=schema.TRAINING_JOB_SECURITY_GROUP_IDS_PATH,
            encrypt_inter_container_traffic=schema.TRAINING_JOB_INTER_CONTAINER_ENCRYPTION_PATH,
            debugger_hook_config=schema.ESTIMATOR_DEBUG_HOOK_CONFIG_PATH,
            enable_network_isolation=schema.TRAINING_JOB_ENABLE_NETWORK_ISOLATION_PATH,
            disable_profiler=schema.TRAINING_JOB_DISABLE_PROFILER_PATH,
            environment=schema.TRAINING_JOB_ENVIRONMENT_PATH,
        )
        if any(map(instance_supports_kms, given.instance_types)):
            given = _with_configured(given, session, volume_kms_key=schema.TRAINING_JOB_VOLUME_KMS_KEY_ID_PATH)
        if not given.role:
            raise ValueError("An AWS IAM role is required: give the ARN, or the name, of one that SageMaker may assume")
        return replace(given, distribution=validated_distribution(given.framework(session.boto_region_name)))

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The types of the hosts."""
        groups = [group.instance_type for group in self.instance_groups or ()]
        return tuple(kind for kind in (self.instance_type, *groups) if kind is not None)

    def framework(self, region: str) -> Framework:
        """Return the parameters that decide the image."""
        return Framework.of({field.name: getattr(self, field.name) for field in fields(self)}, region)

    @property
    def sends_metrics(self) -> bool | None:
        """Whether the API stores the job's metrics as time series; None leaves it to the API."""
        if self.enable_sagemaker_metrics is None and self.framework_version:
            return True if Version(self.framework_version) >= _WITH_METRICS else None
        return self.enable_sagemaker_metrics


def parameter_names() -> frozenset[str]:
    """Return the names of all parameters, and of those that only the Estimator has."""
    return BEYOND_PYTORCH | {SESSION, *(field.name for field in fields(Parameters))}


def switches() -> frozenset[str]:
    """Return the names of the parameters that are True or False."""
    return frozenset(field.name for field in fields(Parameters) if field.type in ("bool", "bool | None"))


def configured(session: Session, path: str) -> Any:
    """Return a copy of the value at a path of the user's SDK configuration, or None."""
    return copy.deepcopy(get_config_value(path, session.sagemaker_config))


def _with_configured(given: Parameters, session: Session, **paths: str) -> Parameters:
    """Return the parameters with the configuration's values for those that are None."""
    found = {name: configured(session, path) for name, path in paths.items() if getattr(given, name) is None}
    return replace(given, **found)


def _check(given: Parameters) -> None:
    for name in ("training_recipe", "compiler_config"):
        if getattr(given, name) is not None:
            raise EstimatorError(
                f"{name} needs the SageMaker Python SDK V2, and V3 is installed. Leave it out, or do: pip install "
                "'sagemaker>=2.257,<3'"
            )
    if given.entry_point is None:
        raise ValueError("Argument entry_point must be set")
    if given.entry_point.startswith("s3://"):
        raise ValueError(f"Invalid entry point script: {given.entry_point}. Must be a path to a local file.")
    fw_utils.validate_version_or_image_args(given.framework_version, given.py_version, given.image_uri)
    if (given.subnets is None) != (given.security_group_ids is None):
        raise ValueError("When setting up custom VPC, both subnets and security_group_ids must be set")
    if given.output_path is not None and given.output_path.startswith("file://"):
        raise ValueError("The 'file://' output paths are only supported when using Local Mode.")
    distribution = given.distribution or {}
    if {"pytorchddp", "smdistributed"} <= distribution.keys():
        raise ValueError("Cannot use both pytorchddp and smdistributed distribution options together.")
    if "pytorchxla" in distribution:
        raise ValueError("Distributed training through PyTorch XLA needs SageMaker Training Compiler, which V3 lacks")
