"""What a job asks for that the SDK's Local Mode can't do, or does nothing about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from estimators import source_code
from estimators.checks.channels import local_path, uri_of
from estimators.local_mode import directories
from estimators.problem import Problem, error, warning

_LOCAL_SAGEMAKER = "estimators.local.LocalSageMaker"
_PLATFORM = f"{_LOCAL_SAGEMAKER} and SageMaker do it."
_ONLY_SAGEMAKER = "Only SageMaker itself does it."

DO_NOTHING: Mapping[str, str] = {
    "use_spot_instances": _PLATFORM,
    "max_wait": _PLATFORM,
    "max_run": _PLATFORM,
    "metric_definitions": _PLATFORM,
    "tags": _PLATFORM,
    "max_retry_attempts": _ONLY_SAGEMAKER,
    "keep_alive_period_in_seconds": _ONLY_SAGEMAKER,
    "training_plan": _ONLY_SAGEMAKER,
    "instance_placement_config": _ONLY_SAGEMAKER,
    "volume_size": _ONLY_SAGEMAKER,
    "volume_kms_key": _ONLY_SAGEMAKER,
    "subnets": _ONLY_SAGEMAKER,
    "security_group_ids": _ONLY_SAGEMAKER,
    "encrypt_inter_container_traffic": _ONLY_SAGEMAKER,
    "enable_network_isolation": "The containers have a network; the local platform's Docker executor takes it away.",
    "enable_remote_debug": _ONLY_SAGEMAKER,
    "enable_infra_check": _ONLY_SAGEMAKER,
    "enable_sagemaker_metrics": _ONLY_SAGEMAKER,
    "enable_session_tag_chaining": _ONLY_SAGEMAKER,
    "training_repository_access_mode": _ONLY_SAGEMAKER,
    "training_repository_credentials_provider_arn": _ONLY_SAGEMAKER,
    "disable_output_compression": _ONLY_SAGEMAKER,
    "rules": _ONLY_SAGEMAKER,
    "debugger_hook_config": _ONLY_SAGEMAKER,
    "profiler_config": _ONLY_SAGEMAKER,
    "tensorboard_output_config": _ONLY_SAGEMAKER,
    "disable_profiler": "",
}
"""Parameters that change nothing in Local Mode, and who does what they ask for."""

_AS_NOT_GIVEN: Mapping[str, Any] = {"max_run": 24 * 60 * 60, "debugger_hook_config": False, "disable_profiler": True}
"""Values that the Estimator itself puts there."""
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - looked for, not bound


def check(
    arguments: Mapping[str, Any],
    data: Mapping[str, Any],
    *,
    has_local_session: bool,
    in_studio: bool,
    s3_endpoint: Callable[[], str],
) -> Iterator[Problem]:
    """Everything that is wrong with a job for Local Mode.

    Args:
        arguments: The parameters for ``PyTorch``.
        data: The channels by name.
        has_local_session: Whether the job's session is none, or one of Local Mode.
        in_studio: Whether this machine is a host of SageMaker Studio.
        s3_endpoint: Says where S3 is, for the containers too.
    """
    if not has_local_session:
        remedy = "Leave it out, or give a sagemaker.local.LocalSession."
        yield error("sagemaker_session", "it is no session of Local Mode, which instance_type='local' needs", remedy)
    if in_studio:
        remedy = f"Use {_LOCAL_SAGEMAKER}, which needs no Docker, or an instance_type of SageMaker's."
        yield error(
            "instance_type", "in SageMaker Studio, the SDK puts Local Mode's files where fit() loses them", remedy
        )
    if arguments["instance_type"] == "local_gpu" and arguments.get("instance_count", 1) != 1:
        remedy = "Use one host; distribution='torchrun' gives it a rank for each GPU."
        yield error("instance_count", "each of Local Mode's hosts would take all GPUs of this machine", remedy)
    if "image_uri" not in arguments:
        remedy = "Without an AWS account, build an image (smddp image build) and give its name."
        yield warning("image_uri", "missing: the SDK will pull AWS's own image, for which it needs AWS", remedy)
    output = arguments.get("output_path")
    if isinstance(output, str) and not output.startswith(("file://", "s3://")):
        yield error("output_path", f"{output!r} is no place for the model", "Give file:///directory or s3://…")
    yield from _check_parameters(arguments)
    yield from _check_checkpoints(arguments, s3_endpoint)
    for name, place in data.items():
        yield from _check_channel(f"inputs[{name!r}]", place, arguments.get("instance_count", 1))
    yield from _check_input_mode("input_mode", arguments.get("input_mode"))


def _check_parameters(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    for name, elsewhere in DO_NOTHING.items():
        value = arguments.get(name)
        if value not in (None, False, [], {}) and value != _AS_NOT_GIVEN.get(name):
            yield warning(name, "it does nothing in the SDK's Local Mode", elsewhere)


def _check_checkpoints(arguments: Mapping[str, Any], s3_endpoint: Callable[[], str]) -> Iterator[Problem]:
    uri, path = arguments.get("checkpoint_s3_uri"), arguments.get("checkpoint_local_path")
    if directory := local_path(uri):
        yield from directories.check(str(uri), directory)
        return
    if path is not None:
        remedy = "With checkpoint_s3_uri='file:///directory' that directory is mounted there."
        yield warning("checkpoint_local_path", "nothing is copied from there in the SDK's Local Mode", remedy)
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return
    endpoint = s3_endpoint()
    if urlsplit(endpoint).hostname in _THIS_MACHINE:
        remedy = "Give S3 an address of this machine that containers reach, such as that of the bridge docker0."
        yield error("checkpoint_s3_uri", f"S3 is at {endpoint}, which for a container is the container", remedy)
    code = source_code.SourceCode.of(arguments)
    if code.is_local and code.script.is_file() and not source_code.imports_package(code):
        yield warning(
            "checkpoint_s3_uri",
            "Local Mode copies nothing to S3, and the code does not import smddp, which saves there itself",
            f"Give 'file:///directory', or use {_LOCAL_SAGEMAKER}, which copies as SageMaker does.",
        )


def _check_channel(parameter: str, place: Any, hosts: Any) -> Iterator[Problem]:
    uri = uri_of(place) or ""
    if uri.startswith("file://") and ":" in uri.removeprefix("file://"):
        remedy = "Rename it, or give a link to it."
        yield error(parameter, f"the SDK can't mount {uri}, for the colon in its path", remedy)
    configuration = getattr(place, "config", None)
    if not isinstance(configuration, Mapping):
        return
    origin = configuration.get("DataSource", {})
    if "FileSystemDataSource" in origin:
        yield error(parameter, "Local Mode mounts no FSx or EFS", "Mount it on this machine, and give file:///path.")
    if origin.get("S3DataSource", {}).get("S3DataDistributionType") == "ShardedByS3Key" and hosts != 1:
        yield error(
            parameter,
            f"Local Mode can't give each of {hosts} hosts a part of the data (ShardedByS3Key)",
            f"Let the script divide it (smddp.ElasticSampler does), or use {_LOCAL_SAGEMAKER}, which shards.",
        )
    yield from _check_input_mode(parameter, configuration.get("InputMode"))


def _check_input_mode(parameter: str, mode: Any) -> Iterator[Problem]:
    """How the data comes: Local Mode knows one way, and says nothing of the others."""
    if mode == "Pipe":
        yield error(
            parameter,
            "the SDK's Local Mode copies the data, and its pipes never come: the script would wait for ever",
            f"Give 'File', or run the job with {_LOCAL_SAGEMAKER}, which serves pipes.",
        )
    elif mode == "FastFile":
        remedy = "SageMaker alone reads it from S3 as the script does."
        yield warning(parameter, "the SDK's Local Mode copies the data before the start, as with 'File'", remedy)
