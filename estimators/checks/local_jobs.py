"""Yield the parameters that a local job can't support or ignores, in our local mode or in the SDK's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from estimators import source_code
from estimators.checks.channels import local_path, uri_of
from estimators.errors import Problem, error, warning

ONLY_SAGEMAKER = (
    "max_retry_attempts",
    "keep_alive_period_in_seconds",
    "training_plan",
    "instance_placement_config",
    "volume_size",
    "volume_kms_key",
    "subnets",
    "security_group_ids",
    "encrypt_inter_container_traffic",
    "enable_remote_debug",
    "enable_infra_check",
    "enable_sagemaker_metrics",
    "enable_session_tag_chaining",
    "training_repository_access_mode",
    "training_repository_credentials_provider_arn",
    "rules",
    "debugger_hook_config",
    "profiler_config",
    "tensorboard_output_config",
    "disable_profiler",
    "mlflow_config",
    "tags",
)
"""Parameters that have no effect on this machine."""
NOT_IN_SDK = (
    "use_spot_instances",
    "max_wait",
    "max_run",
    "metric_definitions",
    "enable_network_isolation",
    "disable_output_compression",
)
"""Parameters that have no effect in the SDK's Local Mode, but do in ours."""

_AS_NOT_GIVEN: Mapping[str, Any] = {"max_run": 24 * 60 * 60, "debugger_hook_config": False, "disable_profiler": True}
"""Values that the Estimator sets itself, so the user did not ask for them."""
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - looked for, not bound
_ML_ROOT = PurePosixPath("/opt/ml")
_HOSTS_OWN = ("code", "input", "model", "output")
"""Directories below /opt/ml that each host needs."""
_OURS = "Leave out sagemaker_session: the Estimator's own local job does it."
_SYSTEM_DIRECTORIES = tuple(map(Path, ("/bin", "/boot", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")))
"""Refused for checkpoints, with everything below them."""
_SHARED_DIRECTORIES = frozenset(
    map(Path, ("/dev", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/tmp"))  # noqa: S108 - refused
)
"""Refused for checkpoints; directories in them are allowed."""
_ROOT = 0


def check(
    arguments: Mapping[str, Any],
    data: Mapping[str, Any],
    *,
    by_sdk: bool,
    in_studio: bool,
    s3_endpoint: Callable[[], str],
) -> Iterator[Problem]:
    """Yield the problems of a local job.

    `by_sdk` means that the SDK's Local Mode runs it, `in_studio` that this machine is a host of SageMaker Studio.
    `s3_endpoint` returns the URL that the containers use for S3, too.
    """
    if in_studio and not by_sdk:  # the SDK's Local Mode supports Studio
        remedy = "Use estimators.local.LocalSageMaker, which needs no Docker, or an instance_type of SageMaker's."
        yield error("instance_type", "in SageMaker Studio, containers have neither the files nor the network", remedy)
    if "training_recipe" in arguments and not by_sdk:
        remedy = "Give an instance_type of SageMaker's, or the script as entry_point."
        yield error("training_recipe", "the SDK uploads a recipe's code, and a local job uploads nothing", remedy)
    if arguments["instance_type"] == "local_gpu" and arguments.get("instance_count", 1) != 1:
        remedy = "Use one host; distribution='torchrun' gives it a rank for each GPU."
        yield error("instance_count", "each host would take all GPUs of this machine", remedy)
    if "image_uri" not in arguments:
        remedy = "Without an AWS account, build an image (smddp image build) and give its name."
        yield warning("image_uri", "missing: AWS's own image will be pulled, for which it needs AWS", remedy)
    output = arguments.get("output_path")
    if isinstance(output, str) and not output.startswith(("file://", "s3://")):
        yield error("output_path", f"{output!r} is no place for the model", "Give file:///directory or s3://…")
    yield from _told(arguments, ONLY_SAGEMAKER, "it does nothing on this machine", "Only SageMaker itself does it.")
    uri = arguments.get("checkpoint_s3_uri")
    if directory := local_path(uri):
        yield from _check_checkpoints(str(uri), directory)
    elif uri is None and arguments.get("checkpoint_local_path") is not None:
        remedy = "With checkpoint_s3_uri='file:///directory' that directory is mounted there."
        yield warning("checkpoint_local_path", "without checkpoint_s3_uri nothing is kept of it", remedy)
    elif str(uri).startswith("s3://") and urlsplit(endpoint := s3_endpoint()).hostname in _THIS_MACHINE:
        found = f"S3 is at {endpoint}, which for a container is the container"
        remedy = "Give S3 an address of this machine that containers reach, such as that of the bridge docker0."
        if by_sdk:
            yield error("checkpoint_s3_uri", found, remedy)
        else:
            yield warning("checkpoint_s3_uri", f"{found}: smddp can't see there whether checkpoints arrive", remedy)
    if (mount_point := arguments.get("checkpoint_local_path")) is not None and local_path(uri):
        yield from _check_mount_point(str(mount_point))
    for name, place in data.items():
        parameter, channel = f"inputs[{name!r}]", _configuration(place)
        if name in (".", ".."):
            yield error(parameter, "it is no name of a directory", "Give the channel another name.")
        if "FileSystemDataSource" in channel.get("DataSource", {}):
            remedy = "Mount it on this machine, and give file:///path."
            yield error(parameter, "no FSx or EFS is mounted on this machine", remedy)
        if _mode(arguments, channel) == "FastFile":
            remedy = "SageMaker alone reads it from S3 as the script does."
            yield warning(parameter, "the data are copied before the start, as with 'File'", remedy)
        if path := local_path(uri_of(place)):
            if not path.exists():
                yield error(parameter, f"there is no {path}", "Give an existing path.")
            yield from _check_directory(parameter, channel, arguments)
    if by_sdk:
        yield from _check_for_sdk(arguments, data)


def _check_checkpoints(uri: str, directory: Path) -> Iterator[Problem]:
    """Yield the problem of a directory for checkpoints, which must be the user's own: the hosts write there as root.

    After the job the user becomes the owner of the hosts' files, and smddp deletes old checkpoints. Neither is
    acceptable in a directory that others use. `uri` is the parameter, `directory` its absolute path.
    """
    if found := _directory_fault(uri, directory):
        remedy = "Give file:///directory, one of your own for this job's checkpoints; it is made if missing."
        yield error("checkpoint_s3_uri", found, remedy)


def _directory_fault(uri: str, directory: Path) -> str | None:
    if not uri.startswith("file:///"):
        return f"{uri!r} holds no absolute path"
    if directory.exists() and not directory.is_dir():
        return f"{directory} is not a directory"
    if directory in _SHARED_DIRECTORIES or any(directory.is_relative_to(place) for place in _SYSTEM_DIRECTORIES):
        return f"{directory} belongs to the system"
    home = Path.home().resolve()
    if home.is_relative_to(directory):
        return f"{directory} is your home directory" if directory == home else f"{directory} holds all home directories"
    if directory.exists() and os.getuid() not in (_ROOT, directory.stat().st_uid):
        return f"{directory} belongs to another user"
    return None


def _check_mount_point(path: str) -> Iterator[Problem]:
    """Yield a mount point for checkpoints that hides a host's own directories, or is not an absolute path."""
    place = PurePosixPath(path)
    hides = _ML_ROOT.is_relative_to(place) or any(place.is_relative_to(_ML_ROOT / name) for name in _HOSTS_OWN)
    if not place.is_absolute() or ".." in place.parts or hides:
        remedy = "Give a directory of its own, such as /opt/ml/checkpoints, which is the default."
        yield error("checkpoint_local_path", f"in the hosts no checkpoints can lie in {path!r}", remedy)


def _check_directory(parameter: str, channel: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Problem]:
    if _mode(arguments, channel) == "Pipe":
        yield error(parameter, "a directory of this machine comes through no pipe", "Give 'File'.")
    if _is_sharded(channel) and arguments.get("instance_count", 1) != 1:
        remedy = "Let the script divide it (smddp.ElasticSampler does)."
        yield error(parameter, "each host sees all of a directory, and no part of it (ShardedByS3Key)", remedy)


def _check_for_sdk(arguments: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _told(arguments, NOT_IN_SDK, "it does nothing in the SDK's Local Mode", _OURS)
    yield from _check_sdks_checkpoints(arguments)
    for name, place in data.items():
        parameter, channel, uri = f"inputs[{name!r}]", _configuration(place), uri_of(place) or ""
        if uri.startswith("file://") and ":" in uri.removeprefix("file://"):
            remedy = "Rename it, or give a link to it."
            yield error(parameter, f"the SDK can't mount {uri}, for the colon in its path", remedy)
        if not uri.startswith("s3://"):
            continue
        if _is_sharded(channel):
            yield error(parameter, "the SDK's Local Mode gives no host a part of the data (ShardedByS3Key)", _OURS)
        if _mode(arguments, channel) == "Pipe":
            found = "the SDK's Local Mode copies the data, and its pipes never come: the script would wait for ever"
            yield error(parameter, found, f"Give 'File'. {_OURS}")


def _check_sdks_checkpoints(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    uri = arguments.get("checkpoint_s3_uri")
    if local_path(uri):
        yield error("checkpoint_s3_uri", "the SDK's Local Mode mounts no directory for checkpoints", _OURS)
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return
    code = source_code.SourceCode.of(arguments)
    if code.is_local and code.script.is_file() and not source_code.imports_package(code):
        found = "it copies nothing to S3, and the code does not import smddp, which saves there itself"
        yield warning("checkpoint_s3_uri", found, _OURS)


def _told(arguments: Mapping[str, Any], names: tuple[str, ...], found: str, remedy: str) -> Iterator[Problem]:
    for name in names:
        value = arguments.get(name)
        if value not in (None, False, [], {}) and value != _AS_NOT_GIVEN.get(name):
            yield warning(name, found, "" if name == "disable_profiler" else remedy)


def _configuration(place: Any) -> Mapping[str, Any]:
    """Return a channel's configuration from one of the SDK's classes (``TrainingInput``, ``FileSystemInput``)."""
    configuration = getattr(place, "config", None)
    return configuration if isinstance(configuration, Mapping) else {}


def _mode(arguments: Mapping[str, Any], channel: Mapping[str, Any]) -> Any:
    return channel.get("InputMode") or arguments.get("input_mode")


def _is_sharded(channel: Mapping[str, Any]) -> bool:
    origin = channel.get("DataSource", {}).get("S3DataSource", {})
    return bool(origin.get("S3DataDistributionType") == "ShardedByS3Key")
