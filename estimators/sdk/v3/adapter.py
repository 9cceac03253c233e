"""The adapter of SDK V3. No call goes through the SDK's telemetry."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sagemaker.core.local.local_session import LocalSession
from sagemaker.core.s3 import S3Uploader, s3_path_join

from estimators.errors import EstimatorError
from estimators.sdk.library import PipelineSession
from estimators.sdk.v3.request import ResolvedJob

if TYPE_CHECKING:
    from estimators.sdk.library import Session


def request(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    session: Session,
    job_name: str | None,
    experiment_config: Mapping[str, str] | None,
    code: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return a job's CreateTrainingJob, without sending it."""
    job = ResolvedJob.of(arguments, session, job_name)
    assert code is not None, "only a training recipe has none, which Parameters.of refuses"
    return job.request(
        inputs,
        code=code,
        experiment_config=experiment_config,
        upload=lambda path, rule: _upload_rule(path, rule, session),
    )


def is_local(session: Session | None) -> bool:
    """Return False, or raise EstimatorError for V3's LocalSession.

    Jobs of ``instance_type="local"`` run in smddp's own containers.
    """
    if isinstance(session, LocalSession):
        raise EstimatorError(
            "sagemaker_session is a LocalSession, and in the SageMaker Python SDK V3 only ModelTrainer has a Local "
            "Mode. Leave sagemaker_session out: instance_type='local' runs in Docker containers without it."
        )
    return False


def is_pipeline(session: Session | None) -> bool:
    """Return False, or raise EstimatorError for a pipeline's session: in V3 a ModelTrainer makes the steps."""
    if isinstance(session, PipelineSession):
        raise EstimatorError(
            "Nothing was sent: sagemaker_session is a PipelineSession, and with the SageMaker Python SDK V3 a step is "
            "made of a ModelTrainer. Give TrainingStep(step_args=estimator.to_sagemaker().train(...))."
        )
    return False


def local_session(given: Session | None = None) -> Session:  # noqa: ARG001 - part of the interface
    """Raise EstimatorError: V3 has no Local Mode with sessions."""
    raise EstimatorError(
        "to_sagemaker() of a local job needs the Local Mode of the SageMaker Python SDK V2, and V3 is installed. fit() "
        "runs the job."
    )


def trainer(arguments: Mapping[str, Any], session: Session, code: Callable[[], tuple[str, str] | None]) -> Any:
    """Return a job as a ModelTrainer with uploaded code, or raise EstimatorError if ModelTrainer can't hold it."""
    from estimators.sdk.v3.model_trainer import model_trainer

    with _refusals_told():
        return model_trainer(ResolvedJob.of(arguments, session, None), lambda: _uploaded(code))


def _uploaded(code: Callable[[], tuple[str, str] | None]) -> tuple[str, str]:
    uploaded = code()
    assert uploaded is not None, "only a training recipe has none, which Parameters.of refuses"
    return uploaded


def _upload_rule(path: str, rule: str, session: Session) -> str:
    """Upload the source of the user's own Debugger rule to the S3 prefix that V2 uses; return its S3 URI."""
    uri = s3_path_join("s3://", session.default_bucket(), session.default_bucket_prefix, rule, str(uuid.uuid4()))
    uploaded: str = S3Uploader.upload(local_path=path, desired_s3_uri=uri, sagemaker_session=session)
    return uploaded


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Turn errors about a job's parameters, from the SDK or from our request builder, into an EstimatorError."""
    try:
        yield
    except EstimatorError:
        raise
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as fault:
        raise EstimatorError(f"The SageMaker SDK refuses the job: {fault}") from fault
