"""Sessions of the SageMaker SDK, V2's and V3's: where a job is sent, and what the user's SDK configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from estimators.errors import EstimatorError
from estimators.sdk.library import (
    Session,
    check_for_studio,
    config_schema,
    get_config_value,
    load_sagemaker_config,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OPT_OUT = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
"""An SDK configuration that says one thing: no telemetry."""

_OVERRIDE = "_default_bucket_name_override"
"""What a session keeps the name of its default bucket by: `Session.default_bucket` would make the bucket."""

NO_REGION = "us-east-1"
"""What boto3 wants to hear, where Local Mode runs without AWS and none is configured."""


def session(boto_session: boto3.Session | None = None, *, default_bucket: str | None = None) -> Session:
    """Return a session of the SDK whose users send no telemetry, unless the user's SDK configuration asks for it.

    Args:
        boto_session: Where its calls go; by default boto3's own choice.
        default_bucket: For what has no place of its own: source bundles, models. By default the SDK's choice.
    """
    return opted_out(Session(boto_session=boto_session, default_bucket=default_bucket))


def opted_out(session: Session) -> Session:
    """Add to a session's configuration that no telemetry is sent, unless it says something about that."""
    configuration: dict[str, Any] = session.sagemaker_config
    if get_config_value(config_schema.TELEMETRY_OPT_OUT_PATH, configuration) is None:
        session.sagemaker_config = merged(configuration, OPT_OUT) if configuration else OPT_OUT
    return session


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings as one; where both have a value, the first one's counts."""
    both = dict(one)
    for key, value in other.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, Mapping) else both.get(key, value)
    return both


@contextmanager
def credentials_explained() -> Iterator[None]:
    """Turn what boto3 says of missing or unreadable AWS credentials into an error that says what to do.

    Raises:
        EstimatorError: There are none, or they can't be read.
    """
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError) as fault:
        raise EstimatorError(
            f"The job was not sent, AWS can't be asked: {str(fault).rstrip('.')}. Sign in (aws configure, or "
            "aws sso login), or train on this machine: give the session of LocalSageMaker()."
        ) from fault


def with_role_found(arguments: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Return parameters with the ARN of a role that is given by its name: the SDK asks IAM only after the upload.

    Raises:
        EstimatorError: IAM does not know the role, or does not tell.
    """
    role = arguments.get("role") or configured_role(session)
    if not isinstance(role, str) or "/" in role:
        return arguments
    if prefix := getattr(session.boto_session, "role_prefix", None):
        return {**arguments, "role": f"{prefix}{role}"}
    try:
        return {**arguments, "role": session.expand_role(role)}
    except ClientError as fault:
        raise EstimatorError(
            f"role: IAM does not give the ARN of {role!r}: {fault}. The job was not sent. Correct the name, or give "
            "the ARN."
        ) from fault


def session_here(given: Session | None) -> Session:
    """Return the user's own session, or one with a region even where none is configured."""
    return given or session(boto3.Session(region_name=region(None) or NO_REGION))


def s3_client(session: Session | None) -> S3Client:
    """Return a client that finds S3 where a session does; None stands for a new one."""
    maker = boto3 if session is None else session.boto_session
    client = getattr(session, "s3_client", None) or maker.client("s3", region_name=region(session) or NO_REGION)
    found: S3Client = client
    return found


def region(session: Session | None) -> str | None:
    """Return the region that a job would be sent to: the session's, or the one that boto3 is configured with."""
    name: str | None = boto3.Session().region_name if session is None else session.boto_region_name
    return name


def named_bucket(session: Session | None) -> str | None:
    """Return the default bucket that a session, or the user's SDK configuration, names; None for the SDK's own."""
    found = None if session is None else vars(session).get("_default_bucket") or vars(session).get(_OVERRIDE)
    return found if isinstance(found, str) else None


def configured_role(session: Session | None) -> str | None:
    """Return the role that the user's SDK configuration gives to training jobs, if any."""
    role: str | None = _configured(config_schema.TRAINING_JOB_ROLE_ARN_PATH, session)
    return role


def configured_switches(session: Session | None) -> frozenset[str]:
    """Return which of Debugger's hook and the profiler the user's SDK configuration turns on or off."""
    paths = {
        "debugger_hook_config": config_schema.ESTIMATOR_DEBUG_HOOK_CONFIG_PATH,
        "disable_profiler": config_schema.TRAINING_JOB_DISABLE_PROFILER_PATH,
    }
    return frozenset(name for name, path in paths.items() if _configured(path, session) is not None)


def configured_output_key(session: Session) -> str | None:
    """Return the KMS key that the user's SDK configuration gives to the output of training jobs, if any."""
    key: str | None = _configured(config_schema.TRAINING_JOB_KMS_KEY_ID_PATH, session)
    return key


def _configured(path: str, session: Session | None) -> Any:
    configuration = load_sagemaker_config() if session is None else session.sagemaker_config
    return get_config_value(path, configuration)


def is_in_studio() -> bool:
    """Return whether the SDK's Local Mode would run as in SageMaker Studio, with its own places for files."""
    try:
        return bool(check_for_studio())
    except NotImplementedError:  # an application of Studio for which the SDK has no Local Mode
        return True
