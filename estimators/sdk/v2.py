"""The SageMaker Python SDK V2: its ``PyTorch`` builds a job's request."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar, get_args

import boto3

from estimators.errors import EstimatorError
from estimators.instances import BEYOND_PYTORCH, complete, for_pytorch
from estimators.sdk import request_values, training_images
from estimators.sdk.library import PipelineSession, Session
from estimators.sdk.quiet import program_kept, without_maintenance_notice
from estimators.sdk.sessions import NO_REGION, OPT_OUT, opted_out, region

with without_maintenance_notice(), program_kept():
    import sagemaker.estimator
    from sagemaker.estimator import EstimatorBase
    from sagemaker.fw_utils import UploadedCode
    from sagemaker.local import LocalSagemakerClient, LocalSession
    from sagemaker.pytorch import PyTorch as PyTorch
    from sagemaker.workflow.entities import PipelineVariable
    from sagemaker.workflow.pipeline_context import LocalPipelineSession


_ENCRYPTION = "EnableInterContainerTrafficEncryption"


class _WithoutTelemetry(EstimatorBase):  # type: ignore[misc]  # the SDK has no types
    """The base class of all estimators, whose ``fit`` bypasses the SDK's telemetry."""

    fit = getattr(EstimatorBase.fit, "__wrapped__", EstimatorBase.fit)


class PyTorchWithoutTelemetry(PyTorch, _WithoutTelemetry):  # type: ignore[misc]
    """``PyTorch`` without telemetry: its ``fit`` calls `_WithoutTelemetry.fit`."""

    def training_image_uri(self, region: str | None = None) -> str:
        """Return the job's image from a cache: one ``fit()`` asks for it several times."""
        return training_images.found_uri(
            region=region or self.sagemaker_session.boto_region_name,
            framework=self._framework_name,
            framework_version=self.framework_version,
            py_version=self.py_version,
            image_uri=self.image_uri,
            distribution=self.distribution or None,
            compiler_config=self.compiler_config,
            instance_type=self._get_instance_type(),
        )

    def hyperparameters(self) -> dict[str, Any]:
        """Return the job's hyperparameters, with the instance groups that its distribution names."""
        groups = self._json_encode_hyperparameters(request_values.trained_groups(self.distribution))
        return {**super().hyperparameters(), **groups}


# A tuner writes its estimator's class and module into the request, and a later attach imports them: every machine has
# the SDK's own names.
PyTorchWithoutTelemetry.__name__ = PyTorch.__name__
PyTorchWithoutTelemetry.__module__ = PyTorch.__module__


class _Staged(PyTorchWithoutTelemetry):
    """``PyTorch`` whose code is uploaded already, except a training recipe's."""

    staged: UploadedCode | None = None

    def _stage_user_code_in_s3(self) -> UploadedCode:
        return self.staged or super()._stage_user_code_in_s3()


@lru_cache(maxsize=1)
def parameter_names() -> frozenset[str]:
    """Return the names of all parameters of ``PyTorch`` and its bases, and of those that only the Estimator has."""
    return BEYOND_PYTORCH | {parameter.name for parameter in _parameters()}


@lru_cache(maxsize=1)
def switches() -> frozenset[str]:
    """Return the names of the parameters that take only True, False or a pipeline's variable."""
    may_be = {bool, PipelineVariable, type(None)}
    annotations = {parameter.name: parameter.annotation for parameter in _parameters()}
    kinds = {name: set(get_args(annotation)) or {annotation} for name, annotation in annotations.items()}
    return frozenset(name for name, allowed in kinds.items() if bool in allowed <= may_be)


def _parameters() -> Iterator[inspect.Parameter]:
    """Yield the parameters of ``PyTorch`` and its bases, starting with the last base."""
    for base in reversed(inspect.getmro(PyTorch)):
        if "__init__" in vars(base) and base is not object:
            for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
                if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                    yield parameter


def trainer(
    arguments: Mapping[str, Any],
    session: Session,
    code: object = None,  # noqa: ARG001 - PyTorch uploads its code itself, as pipelines and tuners want it
) -> PyTorch:
    """Return a ``sagemaker.pytorch.PyTorch``, or raise EstimatorError if the SDK refuses or lacks a parameter."""
    if lost := sorted(BEYOND_PYTORCH & arguments.keys()):
        raise EstimatorError(
            f"PyTorch of the SageMaker Python SDK V2 has no {', '.join(lost)}, so pipelines, tuners and "
            "to_sagemaker() can't send it. Leave it out, or use fit() without a PipelineSession."
        )
    return _made(PyTorchWithoutTelemetry, arguments, session)


_Kind = TypeVar("_Kind", bound=PyTorch)


def _made(kind: type[_Kind], arguments: Mapping[str, Any], session: Session) -> _Kind:
    try:
        with without_maintenance_notice(), _without_app():
            agreeing = _not_overruling(arguments, _unconfigured(session))
            made: _Kind = kind(**for_pytorch(arguments), sagemaker_session=agreeing)
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as fault:
        raise EstimatorError(f"The SageMaker SDK refuses the job: {fault}") from fault
    return made


class _AppWhenUsed:
    """TensorBoard's app of Studio, made when it is used: it makes a client of boto3's default session, in 0.4 s."""

    def __init__(self, region: str | None = None) -> None:
        self._region = region

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy in the making
            raise AttributeError(name)
        return getattr(_TensorBoardApp(region=self._region), name)


_TensorBoardApp = sagemaker.estimator.TensorBoardApp
_app_left_out = threading.Lock()  # guards the SDK's name of the app; nothing else is locked meanwhile, or waited for


@contextmanager
def _without_app() -> Iterator[None]:
    """Give each estimator that the block makes an `_AppWhenUsed`."""
    with _app_left_out:
        sagemaker.estimator.TensorBoardApp = _AppWhenUsed
        try:
            yield
        finally:
            sagemaker.estimator.TensorBoardApp = _TensorBoardApp


def request(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    session: Session,
    job_name: str | None,
    experiment_config: Mapping[str, str] | None,
    code: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return a job's CreateTrainingJob, without sending it. Without `code`, the SDK uploads a training recipe's."""
    requests: list[dict[str, Any]] = []
    recording = copy.copy(_not_overruling(arguments, _unconfigured(session)))
    recording.train = lambda **members: requests.append(recording.get_train_request(**members))
    pytorch = _made(_Staged, arguments, recording)
    pytorch.staged = UploadedCode(*code) if code else None
    step = pytorch.fit(inputs, wait=False, job_name=job_name, experiment_config=experiment_config)
    if step is not None:  # in a pipeline's session fit() only records the call
        step.func(*step.func_args, **step.func_kwargs)
    return complete(requests[0], arguments)


def _unconfigured(session: Session) -> Session:
    """Return the session, without a configuration that only turns telemetry off: our subclass bypasses it anyway.

    The SDK validates a configuration by its schema at each access: 19 times for a job, in all a second.
    """
    if session.sagemaker_config is not OPT_OUT or session.local_mode:
        return session
    unconfigured = copy.copy(session)
    unconfigured.sagemaker_config = {}
    return unconfigured


def _not_overruling(arguments: Mapping[str, Any], session: Session) -> Session:
    """Return a session whose configuration does not override the job's ``encrypt_inter_container_traffic=False``.

    ``PyTorch`` drops this False, and then the session reads the configuration again. No other configurable parameter
    has this problem.
    """
    training = (session.sagemaker_config or {}).get("SageMaker", {}).get("TrainingJob", {})
    if arguments.get("encrypt_inter_container_traffic") is not False or _ENCRYPTION not in training:
        return session
    agreeing = copy.copy(session)
    agreeing.sagemaker_config = copy.deepcopy(session.sagemaker_config)
    agreeing.sagemaker_config["SageMaker"]["TrainingJob"][_ENCRYPTION] = False
    return agreeing


def is_local(session: Session | None) -> bool:
    """Return whether a session belongs to the SDK's Local Mode."""
    return isinstance(session, LocalSession)


def is_pipeline(session: Session | None) -> bool:
    """Return whether a session belongs to a pipeline; raise EstimatorError for a LocalPipelineSession."""
    if isinstance(session, LocalPipelineSession):
        raise EstimatorError(
            "sagemaker_session is a LocalPipelineSession, for which fit() makes no step. Make the step from "
            "to_sagemaker().fit(...), or train with LocalSageMaker."
        )
    return isinstance(session, PipelineSession)


def local_session(given: Session | None = None) -> LocalSession:
    """Return a session of the SDK's Local Mode (``instance_type="local"``) without telemetry.

    A local session is copied, so the user's stays unchanged. Otherwise the new session mounts local code instead of
    uploading it, and needs neither an account nor a region.
    """
    if not is_local(given):
        boto_session = given.boto_session if given else boto3.Session(region_name=region(None) or NO_REGION)
        session = LocalSession(boto_session)
        own = {"local_code": True}
    else:
        session = copy.copy(given)
        own = {}
    configured = (session.config or {}).get("local", {})
    session.config = {"local": {**own, **configured}}
    # Only the client sends telemetry. An empty configuration stays empty: the SDK validates it at each access.
    session.sagemaker_client = LocalSagemakerClient(opted_out(copy.copy(session)))
    return opted_out(session) if session.sagemaker_config else session
