"""Sessions of the SageMaker SDK, V2's and V3's: the target of a job, and the user's SDK configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.exceptions import ClientError

from estimators.errors import not_sent
from estimators.sdk.library import (
    PipelineSession,
    Session,
    check_for_studio,
    config_schema,
    get_config_value,
    load_sagemaker_config,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OPT_OUT = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
"""An SDK configuration that only turns telemetry off."""

_OVERRIDE = "_default_bucket_name_override"
"""The attribute with the name of a session's default bucket; `Session.default_bucket` would create the bucket."""

NO_REGION = "us-east-1"
"""The region for boto3 if none is configured, and Local Mode needs no AWS."""


def session(boto_session: boto3.Session | None = None, *, default_bucket: str | None = None) -> Session:
    """Return a session of the SDK without telemetry, unless the user's SDK configuration asks for it.

    By default the SDK chooses the default bucket, for code and models without their own URI.
    """
    return opted_out(Session(boto_session=boto_session, default_bucket=default_bucket))


def opted_out(session: Session) -> Session:
    """Turn telemetry off in a session's configuration, unless that sets it."""
    configuration: dict[str, Any] = session.sagemaker_config
    if get_config_value(config_schema.TELEMETRY_OPT_OUT_PATH, configuration) is None:
        session.sagemaker_config = merged(configuration, OPT_OUT) if configuration else OPT_OUT
    return session


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested mappings as one; the first one's values win."""
    both = dict(one)
    for key, value in other.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, Mapping) else both.get(key, value)
    return both


def role_arn(name: str, session: Session) -> str:
    """Return the ARN of a role; raise EstimatorError if IAM does not know it. The SDK itself asks after the upload."""
    if prefix := getattr(session.boto_session, "role_prefix", None):
        return f"{prefix}{name}"
    try:
        arn: str = session.expand_role(name)
    except ClientError as fault:
        raise not_sent(
            f"IAM does not give the ARN of the role {name!r}: {fault}", "Correct the name, or give the ARN."
        ) from fault
    return arn


def default_bucket(session: Session) -> str:
    """Return a session's default bucket, which the SDK makes if missing; raise EstimatorError if AWS refuses."""
    try:
        name: str = session.default_bucket()
    except (ClientError, ValueError) as fault:
        raise not_sent(
            f"the session's default bucket can't be used: {fault}",
            "Give output_path and code_location in another bucket, or let your user make this one.",
        ) from fault
    return name


def upload(session: Session, place: Mapping[str, Any]) -> None:
    """Upload a file or directory by the arguments of `Session.upload_data`; raise EstimatorError if S3 refuses it."""
    try:
        session.upload_data(**place)
    except (ClientError, Boto3Error) as fault:
        raise not_sent(
            f"{place['path']} can't be uploaded to s3://{place['bucket']}: {fault}", "Let your user write there."
        ) from fault


def runs_in_this_python(session: Session | None) -> bool | None:
    """Return whether a LocalSageMaker's jobs run in this Python's environment; None for a session of AWS."""
    return None if session is None else getattr(session.boto_session, "runs_in_this_python", None)


def hosts_are_processes(session: Session | None) -> bool:
    """Return whether the hosts of a job are processes of this machine: those of a LocalSageMaker may be."""
    return session is not None and getattr(session.boto_session, "hosts_are_processes", False)


def is_of_pipeline(session: Session | None) -> bool:
    """Return whether a session only records calls for a pipeline, which sets its variables when it runs."""
    return isinstance(session, PipelineSession)


def session_here(given: Session | None) -> Session:
    """Return the user's session, or a new one, with a region even if none is configured."""
    return given or session(boto3.Session(region_name=region(None) or NO_REGION))


def s3_client(session: Session | None) -> S3Client:
    """Return a client of the S3 that a session uses; None stands for a new session."""
    maker = boto3 if session is None else session.boto_session
    client = getattr(session, "s3_client", None) or maker.client("s3", region_name=region(session) or NO_REGION)
    found: S3Client = client
    return found


def region(session: Session | None) -> str | None:
    """Return the region of a job: the session's, or boto3's configured one; None if absent."""
    name: str | None = boto3.Session().region_name if session is None else session.boto_region_name
    return name


def known_regions() -> frozenset[str]:
    """Return the regions in which the installed botocore knows SageMaker."""
    known = boto3.Session()
    partitions = known.get_available_partitions()
    return frozenset(name for each in partitions for name in known.get_available_regions("sagemaker", each))


def unknown_region(session: Session | None) -> str | None:
    """Return the region of a job if the installed botocore does not know it, else None."""
    name = region(session)
    return None if name in known_regions() else name


def named_bucket(session: Session | None) -> str | None:
    """Return the default bucket that a session or the user's SDK configuration names, or None for the SDK's own."""
    found = None if session is None else vars(session).get("_default_bucket") or vars(session).get(_OVERRIDE)
    return found if isinstance(found, str) else None


def configured_role(session: Session | None) -> str | None:
    """Return the role for training jobs in the user's SDK configuration, or None."""
    role: str | None = _configured(config_schema.TRAINING_JOB_ROLE_ARN_PATH, session)
    return role


def configured_switches(session: Session | None) -> frozenset[str]:
    """Return the names of the switches that the user's SDK configuration sets: Debugger's hook and the profiler."""
    paths = {
        "debugger_hook_config": config_schema.ESTIMATOR_DEBUG_HOOK_CONFIG_PATH,
        "disable_profiler": config_schema.TRAINING_JOB_DISABLE_PROFILER_PATH,
    }
    return frozenset(name for name, path in paths.items() if _configured(path, session) is not None)


def configured_output_key(session: Session) -> str | None:
    """Return the KMS key for the output of training jobs in the user's SDK configuration, or None."""
    key: str | None = _configured(config_schema.TRAINING_JOB_KMS_KEY_ID_PATH, session)
    return key


def _configured(path: str, session: Session | None) -> Any:
    configuration = load_sagemaker_config() if session is None else session.sagemaker_config
    return get_config_value(path, configuration)


def is_in_studio() -> bool:
    """Return whether the SDK's Local Mode would run as in SageMaker Studio, with its different paths."""
    try:
        return bool(check_for_studio())
    except NotImplementedError:  # an application of Studio without Local Mode in the SDK
        return True
