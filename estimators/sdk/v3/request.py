"""A job's CreateTrainingJob, each member as V2's ``PyTorch`` sets it. Nothing here uses the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sagemaker.core.common_utils import base_name_from_image, instance_supports_kms, name_from_base
from sagemaker.core.config import config_schema
from sagemaker.core.inputs import FileSystemInput, TrainingInput
from sagemaker.core.jumpstart.utils import add_jumpstart_uri_tags, get_jumpstart_base_name_if_jumpstart_model
from sagemaker.core.s3 import s3_path_join

from estimators.instances import complete, for_pytorch
from estimators.sdk import training_images
from estimators.sdk.library import fw_utils
from estimators.sdk.request_values import request_tags, trained_groups
from estimators.sdk.sessions import merged
from estimators.sdk.v3.debugger import debugger_members
from estimators.sdk.v3.parameters import Parameters, configured

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_CODE_CHANNEL = "/opt/ml/input/data/code/sourcedir.tar.gz"
"""The code in a container without a network, where it is a channel."""
_TAGS = f"{config_schema.SAGEMAKER}.{config_schema.TRAINING_JOB}.{config_schema.TAGS}"
_WITHOUT_PARALLEL_LIBRARIES = "2.0.1-gpu-py310-cu121"
"""The tag of the only AWS image whose CUDA version the data-parallel library does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """A job with all values that its request needs."""

    asked: Mapping[str, Any]
    """The parameters of the Estimator."""
    parameters: Parameters
    """The parameters of ``PyTorch``, completed from the SDK's configuration."""
    session: Session
    """The source of the job's region, role and configuration."""
    base_name: str
    """The beginning of generated job names."""
    name: str
    """The training job's name."""
    image: str
    """The image of the hosts."""
    output_path: str
    """The S3 prefix of the model, and of other output without its own URI."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session, job_name: str | None) -> ResolvedJob:
        """Resolve a job. Without a name it gets one from the base name, or the image, and the time."""
        parameters = Parameters.of(for_pytorch(arguments), session)
        image = training_images.image_uri(parameters.framework(session.boto_region_name))
        base = (
            parameters.base_job_name
            or get_jumpstart_base_name_if_jumpstart_model(parameters.source_dir, parameters.model_uri)
            or base_name_from_image(image)
        )
        bucket = None if parameters.output_path else session.default_bucket()
        default = s3_path_join("s3://", bucket, session.default_bucket_prefix, with_end_slash=True)
        return cls(
            asked=arguments,
            parameters=parameters,
            session=session,
            base_name=base,
            name=job_name or name_from_base(base),
            image=image,
            output_path=parameters.output_path or default,
        )

    def request(
        self,
        inputs: Any,
        *,
        code: tuple[str, str],
        experiment_config: Mapping[str, str] | None,
        upload: Callable[[str, str], str],
    ) -> dict[str, Any]:
        """Return the job's CreateTrainingJob; raise ValueError or RuntimeError if V2's ``PyTorch`` would refuse it.

        `code` is the S3 URI of the code, and the script in it. `upload` takes the path and name of a user's own
        Debugger rule, and returns the S3 URI of its source.
        """
        given, region = self.parameters, self.session.boto_region_name
        uri, script = code
        is_isolated = bool(given.enable_network_isolation)
        members = {
            "TrainingJobName": self.name,
            "RoleArn": self.session.expand_role(given.role),
            "AlgorithmSpecification": self._algorithm(inputs),
            "HyperParameters": _hyperparameters(
                given, job_name=self.name, region=region, code=(_CODE_CHANNEL if is_isolated else uri, script)
            ),
            "InputDataConfig": input_data_config(
                inputs,
                model_uri=given.model_uri,
                model_channel=given.model_channel_name,
                code_uri=uri if is_isolated else None,
            ),
            "OutputDataConfig": self._output(),
            "ResourceConfig": self._resources(),
            "StoppingCondition": _given(MaxRuntimeInSeconds=given.max_run, MaxWaitTimeInSeconds=given.max_wait or None),
            "VpcConfig": self._with_configured(
                _given(Subnets=given.subnets, SecurityGroupIds=given.security_group_ids),
                config_schema.TRAINING_JOB_VPC_CONFIG_PATH,
            )
            or None,
            "CheckpointConfig": self._checkpoints(),
            "Environment": given.environment,
            "Tags": self._tags(),
            "ExperimentConfig": dict(experiment_config) if experiment_config else None,
            "EnableNetworkIsolation": is_isolated or None,
            "EnableInterContainerTrafficEncryption": given.encrypt_inter_container_traffic or None,
            "EnableManagedSpotTraining": given.use_spot_instances or None,
            "RetryStrategy": _given(MaximumRetryAttempts=given.max_retry_attempts) or None,
            "InfraCheckConfig": _given(EnableInfraCheck=given.enable_infra_check) or None,
            "RemoteDebugConfig": _given(EnableRemoteDebug=given.enable_remote_debug) or None,
            "SessionChainingConfig": _given(EnableSessionTagChaining=given.enable_session_tag_chaining) or None,
            **debugger_members(given, job_name=self.name, region=region, output_path=self.output_path, upload=upload),
        }
        path = config_schema.TRAINING_JOB_PROFILE_CONFIG_PATH
        members["ProfilerConfig"] = self._with_configured(members["ProfilerConfig"], path)
        return complete(_given(**members), self.asked)

    def _algorithm(self, inputs: Any) -> dict[str, Any]:
        given = self.parameters
        credentials = _given(
            TrainingRepositoryCredentialsProviderArn=given.training_repository_credentials_provider_arn
        )
        access = _given(
            TrainingRepositoryAccessMode=given.training_repository_access_mode,
            TrainingRepositoryAuthConfig=credentials or None,
        )
        return _given(
            TrainingImage=self.image,
            TrainingInputMode=_input_mode(inputs, given.input_mode),
            TrainingImageConfig=access if given.training_repository_access_mode is not None else None,
            ContainerEntrypoint=given.container_entry_point,
            ContainerArguments=given.container_arguments,
            MetricDefinitions=given.metric_definitions,
            EnableSageMakerMetricsTimeSeries=given.sends_metrics,
        )

    def _output(self) -> dict[str, Any]:
        given = self.parameters
        return self._with_configured(
            _given(
                S3OutputPath=self.output_path,
                KmsKeyId=given.output_kms_key,
                CompressionType="NONE" if given.disable_output_compression else None,
            ),
            config_schema.TRAINING_JOB_OUTPUT_DATA_CONFIG_PATH,
        )

    def _resources(self) -> dict[str, Any]:
        given = self.parameters
        hosts = _given(InstanceCount=given.instance_count, InstanceType=given.instance_type)
        if given.instance_groups is not None:
            if hosts:
                raise ValueError("instance_count and instance_type cannot be set when instance_groups is set")
            hosts["InstanceGroups"] = [
                {
                    "InstanceGroupName": group.instance_group_name,
                    "InstanceType": group.instance_type,
                    "InstanceCount": group.instance_count,
                }
                for group in given.instance_groups
            ]
        elif len(hosts) < 2:
            raise ValueError("instance_count and instance_type must be set if instance_groups is not set")
        stated = _given(
            **hosts,
            VolumeSizeInGB=given.volume_size,
            VolumeKmsKeyId=given.volume_kms_key,
            KeepAlivePeriodInSeconds=given.keep_alive_period_in_seconds,
            TrainingPlanArn=given.training_plan,
            InstancePlacementConfig=given.instance_placement_config,
        )
        resources = self._with_configured(stated, config_schema.TRAINING_JOB_RESOURCE_CONFIG_PATH)
        takes_key = given.instance_type is None or instance_supports_kms(given.instance_type)
        if given.volume_kms_key is None and not takes_key:
            resources.pop("VolumeKmsKeyId", None)
        return resources

    def _checkpoints(self) -> dict[str, Any] | None:
        given = self.parameters
        if not given.checkpoint_s3_uri:
            return None
        return _given(S3Uri=given.checkpoint_s3_uri, LocalPath=given.checkpoint_local_path or None)

    def _tags(self) -> list[dict[str, str]] | None:
        given = self.parameters
        tags = request_tags(given.tags)
        if self.session.settings.include_jumpstart_tags:
            tags = add_jumpstart_uri_tags(
                tags=tags, training_model_uri=given.model_uri, training_script_uri=given.source_dir
            )
        stated = list(tags or ())
        names = {tag["Key"] for tag in stated}
        stated += [tag for tag in configured(self.session, _TAGS) or () if tag["Key"] not in names]
        return stated if stated or tags is not None else None

    def _with_configured(self, members: dict[str, Any], path: str) -> dict[str, Any]:
        return merged(members, configured(self.session, path) or {})


def _given(**members: Any) -> dict[str, Any]:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}


_CODE = "code"
_EXPECTED = "str, dict, TrainingInput or FileSystemInput"
_MODEL_TYPE = "application/x-sagemaker-model"


def input_data_config(
    inputs: Any, *, model_uri: str | None, model_channel: str, code_uri: str | None
) -> list[dict[str, Any]] | None:
    """Return all channels in the request's form, including the model's and the code's; None if there are none.

    Raise ValueError if a channel has another type, is not on S3, or uses a name twice.
    """
    places = inputs if isinstance(inputs, Mapping) else {} if inputs is None else {"training": inputs}
    named = {name: _channel(place) for name, place in places.items()}
    model: dict[str, str] = {"content_type": _MODEL_TYPE, "input_mode": "File"}
    for name, uri, options in ((model_channel, model_uri, model), (_CODE, code_uri, {})):
        if not uri:
            continue
        if not name:
            raise ValueError(f"Expected a channel name if a channel URI {uri} is specified")
        if name in named:
            raise ValueError(f"Duplicate channel {name} not allowed.")
        named[name] = _channel(uri, **options)
    if inputs is None and not named:
        return None
    return [{**channel, "ChannelName": name} for name, channel in named.items()]


def _input_mode(inputs: Any, default: str) -> str:
    """Return the mode of channels that set no mode: a single ``TrainingInput``'s, or else `default`."""
    mode: str = inputs.config.get("InputMode", default) if isinstance(inputs, TrainingInput) else default
    return mode


def _channel(place: Any, **options: str) -> dict[str, Any]:
    if isinstance(place, TrainingInput | FileSystemInput):
        config: Mapping[str, Any] = place.config
        return dict(config)
    if not isinstance(place, str):
        raise ValueError(f"Cannot format input {place}. Expecting one of {_EXPECTED}")
    if not place.startswith("s3://"):
        raise ValueError(f'URI input {place} must be a valid S3 URI: must start with "s3://"')
    return dict(TrainingInput(place, **options).config)


def _hyperparameters(parameters: Parameters, *, job_name: str, region: str, code: tuple[str, str]) -> dict[str, str]:
    """Return the hyperparameters as JSON text, for `parameters` with a validated distribution.

    `code` is the location of the code in the containers, and the script in it.
    """
    directory, script = code
    values = {
        **(parameters.hyperparameters or {}),
        "sagemaker_submit_directory": directory,
        "sagemaker_program": script,
        "sagemaker_container_log_level": parameters.container_log_level,
        "sagemaker_job_name": job_name,
        "sagemaker_region": region,
        **_launcher(parameters),
    }
    return {str(name): json.dumps(value) for name, value in values.items()}


def _launcher(parameters: Parameters) -> dict[str, Any]:
    """Return the hyperparameters that tell the toolkit how to start the ranks."""
    distribution = parameters.distribution or {}
    if not _mapping(distribution, "torch_distributed").get("enabled", False):
        return _mpi_and_libraries(parameters, distribution)
    libraries = _mpi_and_libraries(parameters, distribution) if "smdistributed" in distribution else {}
    return {
        **libraries,
        **trained_groups(distribution),
        "sagemaker_torch_distributed_enabled": True,
        **_instance_type(parameters.instance_type),
    }


def _mpi_and_libraries(parameters: Parameters, distribution: Mapping[str, Any]) -> dict[str, Any]:
    values = trained_groups(distribution)
    if "parameter_server" in distribution:
        enabled = _mapping(distribution, "parameter_server").get("enabled", False)
        values["sagemaker_parameter_server_enabled"] = enabled
    if "mpi" in distribution:
        mpi = _mapping(distribution, "mpi")
        values["sagemaker_mpi_enabled"] = mpi.get("enabled", False)
        if mpi.get("processes_per_host"):
            values["sagemaker_mpi_num_of_processes_per_host"] = mpi["processes_per_host"]
        values["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options", "")
    if "smdistributed" in distribution:
        values |= _libraries(parameters, distribution)
    starts = ("sagemaker_mpi_enabled", "sagemaker_distributed_dataparallel_enabled")
    if trained_groups(distribution) and not any(values.get(name) for name in starts):
        raise ValueError("Don't set training instance groups while no distribution strategies enabled!")
    return values


def _libraries(parameters: Parameters, distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters for SMDDP and the model-parallel library."""
    if not _mapping(distribution, "torch_distributed").get("enabled", False):
        if _WITHOUT_PARALLEL_LIBRARIES in (parameters.image_uri or ""):
            raise ValueError(f"SMDistributed is currently incompatible with DLC image: {parameters.image_uri}.")
        if any("p5.48xlarge" in instance_type for instance_type in parameters.instance_types):
            raise ValueError("SMModelParallel and SMDataParallel currently do not support p5 instances.")
    data_parallel = _mapping(distribution["smdistributed"], "dataparallel")
    enabled = data_parallel.get("enabled", False)
    values: dict[str, Any] = {
        "sagemaker_distributed_dataparallel_enabled": enabled,
        "sagemaker_instance_type": parameters.instance_type,
    }
    if model_parallel := fw_utils.get_mp_parameters(distribution):
        values["mp_parameters"] = model_parallel
    if enabled:
        options = data_parallel.get("custom_mpi_options", "")
        values["sagemaker_distributed_dataparallel_custom_mpi_options"] = options
    return values


def _instance_type(instance_type: str | None) -> dict[str, str]:
    return {} if instance_type is None else {"sagemaker_instance_type": instance_type}


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name, {})
    return found if isinstance(found, Mapping) else {}
