"""The SageMaker Python SDK V2, asked and built with; the only file that imports it. It decides nothing by itself.

What the SDK accepts is found out by asking it, so that a newer SDK needs no change here.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any, get_args

import boto3
from botocore.exceptions import (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)
from packaging.version import Version

from estimators.errors import EstimatorError
from estimators.image import Framework
from estimators.sdk.quiet import (
    program_kept,
    quiet_configuration_logger,
    without_log,
    without_maintenance_notice,
)

quiet_configuration_logger()
try:
    with without_maintenance_notice(), program_kept():
        import sagemaker.experiments  # noqa: F401 - PyTorch.fit would load it, and with it set up the root logger
        from sagemaker import fw_utils, git_utils, image_uris
        from sagemaker.config import load_sagemaker_config
        from sagemaker.config.config_schema import TELEMETRY_OPT_OUT_PATH, TRAINING_JOB_ROLE_ARN_PATH
        from sagemaker.estimator import EstimatorBase
        from sagemaker.local import LocalSagemakerClient, LocalSession
        from sagemaker.local.utils import check_for_studio
        from sagemaker.pytorch import PyTorch as PyTorch
        from sagemaker.session import Session as Session
        from sagemaker.utils import format_tags, get_config_value
        from sagemaker.workflow import is_pipeline_variable
        from sagemaker.workflow.entities import PipelineVariable
except ModuleNotFoundError as fault:
    if (fault.name or "").partition(".")[0] != "sagemaker":
        raise
    raise EstimatorError(
        "The SageMaker Python SDK V2 is not installed. Do: pip install 'smddp[sagemaker]' (sagemaker>=2.257,<3)"
    ) from fault

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_OPT_OUT = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
"""An SDK configuration that says one thing: no telemetry."""

_NO_REGION = "us-east-1"
"""What boto3 wants to hear, where Local Mode runs without AWS and none is configured."""

_IMAGE_TABLES = ("pytorch", "pytorch-neuron")
"""The SDK's tables of training images: for CPUs and GPUs, and for Trainium."""


class _WithoutTelemetry(EstimatorBase):  # type: ignore[misc]  # the SDK has no types
    """The base of all estimators, with the ``fit`` that lies below the SDK's telemetry."""

    fit = getattr(EstimatorBase.fit, "__wrapped__", EstimatorBase.fit)


class PyTorchWithoutTelemetry(PyTorch, _WithoutTelemetry):  # type: ignore[misc]
    """``PyTorch`` that sends no telemetry; its ``fit`` goes on to the one above."""


def session(boto_session: boto3.Session | None = None, *, default_bucket: str | None = None) -> Session:
    """Return a session of the SDK whose users send no telemetry, unless the user's SDK configuration asks for it.

    Args:
        boto_session: Where its calls go; by default boto3's own choice.
        default_bucket: For what has no place of its own: source bundles, models. By default the SDK's choice.
    """
    return _opted_out(Session(boto_session=boto_session, default_bucket=default_bucket))


def local_session(given: Session | None = None) -> LocalSession:
    """Return a session of the SDK's Local Mode (``instance_type="local"``), without telemetry.

    Args:
        given: The user's own, which stays as it is: the session is a copy of it. Without one, or of one of AWS, a new
            one is made, which mounts local code instead of uploading it, and needs neither an account nor a region.
    """
    if not is_local(given):
        boto_session = given.boto_session if given else boto3.Session(region_name=region(None) or _NO_REGION)
        session = LocalSession(boto_session)
        own = {"local_code": True}
    else:
        session = copy.copy(given)
        own = {}
    configured = (session.config or {}).get("local", {})
    session.config = {"local": {**own, **configured}}
    # Only the client sends telemetry. At each look the SDK checks a configuration by its schema: empty stays empty.
    session.sagemaker_client = LocalSagemakerClient(_opted_out(copy.copy(session)))
    return _opted_out(session) if session.sagemaker_config else session


def session_here(given: Session | None) -> Session:
    """Return the user's own session, or one with a region even where none is configured."""
    return given or session(boto3.Session(region_name=region(None) or _NO_REGION))


def is_local(session: Session | None) -> bool:
    """Return whether a session is one of the SDK's own Local Mode."""
    return isinstance(session, LocalSession)


def s3_client(session: Session | None) -> S3Client:
    """Return a client that finds S3 where a session does; None stands for a new one."""
    maker = boto3 if session is None else session.boto_session
    client = getattr(session, "s3_client", None) or maker.client("s3", region_name=region(session) or _NO_REGION)
    found: S3Client = client
    return found


def cloned(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of ``PyTorch`` whose code is on this machine: a ``git_config`` is cloned, as the SDK does it.

    Raises:
        EstimatorError: The repository can't be had, or lacks what is asked for.
    """
    if "git_config" not in arguments:
        return dict(arguments)
    try:
        paths = git_utils.git_clone_repo(
            *(arguments[name] for name in ("git_config", "entry_point")),
            *(arguments.get(name) for name in ("source_dir", "dependencies")),
        )
    except (ValueError, CalledProcessError) as fault:
        raise EstimatorError(f"git_config: {fault}") from fault
    return {name: value for name, value in {**arguments, **paths, "git_config": None}.items() if value}


def is_in_studio() -> bool:
    """Return whether the SDK's Local Mode would run as in SageMaker Studio, with its own places for files."""
    try:
        return bool(check_for_studio())
    except NotImplementedError:  # an application of Studio for which the SDK has no Local Mode
        return True


def _opted_out(session: Session) -> Session:
    configuration: dict[str, Any] = session.sagemaker_config
    if get_config_value(TELEMETRY_OPT_OUT_PATH, configuration) is None:
        session.sagemaker_config = _merged(configuration, _OPT_OUT) if configuration else _OPT_OUT
    return session


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for key, value in other.items():
        both[key] = _merged(both.get(key, {}), value) if isinstance(value, Mapping) else both.get(key, value)
    return both


def pytorch(
    arguments: Mapping[str, Any], session: Session, *, kind: type[PyTorch] = PyTorchWithoutTelemetry
) -> PyTorch:
    """Return ``sagemaker.pytorch.PyTorch``, or a kind of it, from its parameters by name.

    Raises:
        EstimatorError: The SDK refuses them.
    """
    if session.sagemaker_config is _OPT_OUT and not session.local_mode:
        # The SDK checks a configuration against its schema at each look, 19 times a job, a second in all.
        session = copy.copy(session)
        session.sagemaker_config = {}
    try:
        with without_maintenance_notice():
            return kind(**arguments, sagemaker_session=session)
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as fault:
        raise EstimatorError(f"The SageMaker SDK refuses the job: {fault}") from fault


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


@lru_cache(maxsize=1)
def parameter_names() -> frozenset[str]:
    """Return the names of all parameters of ``PyTorch`` and its bases."""
    return frozenset(parameter.name for parameter in _parameters())


@lru_cache(maxsize=1)
def switches() -> frozenset[str]:
    """Return the names of the parameters that are True or False, and nothing else but a pipeline's variable."""
    may_be = {bool, PipelineVariable, type(None)}
    annotations = {parameter.name: parameter.annotation for parameter in _parameters()}
    kinds = {name: set(get_args(annotation)) or {annotation} for name, annotation in annotations.items()}
    return frozenset(name for name, allowed in kinds.items() if bool in allowed <= may_be)


def _parameters() -> Iterator[inspect.Parameter]:
    """Yield the parameters of ``PyTorch`` and its bases, from the last base on."""
    for base in reversed(inspect.getmro(PyTorch)):
        if "__init__" in vars(base) and base is not object:
            for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
                if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                    yield parameter


def refusal(framework: Framework) -> str | None:
    """Return why the SDK refuses a combination of distribution, instance type and version; None if it takes it."""
    try:
        with without_log():
            if framework.distribution is not None:
                fw_utils.validate_distribution(
                    _as_validated(framework.distribution),
                    framework.instance_groups,
                    "pytorch",
                    framework.version,
                    framework.py_version,
                    framework.image_uri,
                    {"entry_point": framework.entry_point, "instance_type": framework.instance_type},
                )
            image_uris.get_training_image_uri(
                region=framework.region,
                framework="pytorch",
                framework_version=framework.version,
                py_version=framework.py_version,
                image_uri=framework.image_uri,
                distribution=framework.distribution,
                compiler_config=framework.compiler_config,
                instance_type=framework.image_instance_type,
            )
    except (ValueError, KeyError) as fault:
        return " ".join(str(fault).split()).rstrip(".")
    except (AttributeError, TypeError):
        return None  # the SDK stumbles over a value of a wrong type, which our own checks name
    return None


def choose_versions(framework: Framework) -> tuple[Framework, str | None]:
    """Fill in the versions that are open: the newest that the SDK accepts.

    Returns:
        The framework with both versions, and why the SDK refuses it: None, unless it refuses every choice.
    """
    candidates = [
        replace(framework, version=version, py_version=py_version)
        for version, py_version in _known_versions()
        if framework.version in (None, version) and framework.py_version in (None, py_version)
    ]
    if not candidates:
        newest, newest_python = _known_versions()[0]
        candidates = [
            replace(
                framework,
                version=framework.version or newest,
                py_version=framework.py_version or newest_python,
            )
        ]
    accepted = next((candidate for candidate in candidates if refusal(candidate) is None), None)
    return (accepted, None) if accepted else (candidates[0], refusal(candidates[0]))


@lru_cache(maxsize=1)
def _known_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of PyTorch that the SDK has images of, each with its Python; newest first."""
    known = set()
    for name in _IMAGE_TABLES:
        table = image_uris.config_for_framework(name)["training"]
        full = {version: version for version in table["versions"]}
        for version, meant in {**table["version_aliases"], **full}.items():
            known |= {(version, py_version) for py_version in table["versions"][meant]["py_versions"]}
    return tuple(sorted(known, key=_newness, reverse=True))


def _newness(pair: tuple[str, str]) -> tuple[Version, int, int]:
    """Return a key that orders versions; of "2.8" and "2.8.0" the exact one is preferred."""
    version, py_version = pair
    return Version(version), len(version), int(py_version.removeprefix("py"))


def _as_validated(distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the distribution as ``PyTorch`` itself hands it to the SDK's checks."""
    renamed = dict(distribution)
    if "pytorchddp" in renamed:
        renamed["smdistributed"] = {"dataparallel": renamed.pop("pytorchddp")}
    return renamed


def data_parallel_instance_types() -> tuple[str, ...]:
    """Return the instance types that the SDK knows SMDDP to run on; the SDK lists them, but never looks."""
    return tuple(fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES)


def region(session: Session | None) -> str | None:
    """Return the region that a job would be sent to: the session's, or the one that boto3 is configured with."""
    name: str | None = boto3.Session().region_name if session is None else session.boto_region_name
    return name


def configured_role(session: Session | None) -> str | None:
    """Return the role that the user's SDK configuration gives to training jobs, if any."""
    configuration = load_sagemaker_config() if session is None else session.sagemaker_config
    role: str | None = get_config_value(TRAINING_JOB_ROLE_ARN_PATH, configuration)
    return role


def request_tags(tags: Any) -> Any:
    """Return tags in the form of the request: a list of ``{"Key": …, "Value": …}``."""
    return format_tags(tags)


def hyperparameter_text(value: Any) -> str | None:
    """Return a hyperparameter as the request holds it: as JSON; None for a pipeline variable, which is not known yet.

    Raises:
        TypeError: JSON can't hold it.
        ValueError: It contains itself.
    """
    return None if is_pipeline_variable(value) else json.dumps(value)
