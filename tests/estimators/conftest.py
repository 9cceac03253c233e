"""A session of the SDK in front of moto, and the requests for training jobs that go through it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import handlers
from moto import mock_aws

from estimators.estimator import NOTHING_SENT, Estimator
from tests.estimators.data_on_s3 import BUCKET, put_data

ROLE = "arn:aws:iam::123456789012:role/SageMaker"


@pytest.fixture(autouse=True)
def _cold_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a platform that a test starts import nothing for its few jobs, most of which are shell scripts."""
    monkeypatch.setenv("SMDDP_WARM", "0")


@pytest.fixture(scope="module")
def sagemaker_session() -> Iterator[Any]:
    import sagemaker

    with mock_aws():
        boto_session = boto3.Session(region_name="us-east-1")
        put_data(boto_session.client("s3"))
        yield sagemaker.Session(boto_session, default_bucket=BUCKET)


@pytest.fixture
def requests(sagemaker_session: Any) -> Iterator[list[dict[str, Any]]]:
    """Each CreateTrainingJob, as it was sent."""
    sent: list[dict[str, Any]] = []

    def record(params: dict[str, Any], **_: Any) -> None:
        sent.append(params)

    events, name = sagemaker_session.sagemaker_client.meta.events, "provide-client-params.sagemaker.CreateTrainingJob"
    events.register(name, record)
    yield sent
    events.unregister(name, record)


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the SDK would have reported to; vanilla PyTorch needs it, to stay off the network."""
    reported: list[str] = []
    monkeypatch.setattr("requests.get", lambda url, *_args, **_options: reported.append(url))
    return reported


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A training script that never heard of smddp."""
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    path.write_text("print('training')\n")
    return str(path)


@pytest.fixture
def may_send_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo at the end what keeps a process for good from sending jobs, once it has run a submit script."""
    ending = ((os, name) for name in ("_exit", "execv", "execve"))
    for owner, name in ((Estimator, "fit"), (Estimator, "rehearse"), (boto3, "DEFAULT_SESSION"), *ending):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(handlers, "BUILTIN_HANDLERS", list(handlers.BUILTIN_HANDLERS))
    monkeypatch.setenv(NOTHING_SENT, "")
    monkeypatch.delenv(NOTHING_SENT)
