"""What the SDK's own Local Mode is given, and a session that it is given it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from sagemaker.local import LocalSession
from sagemaker.session import Session

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.local_mode import sdk_arguments
from estimators.sdk import v2


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def arguments(script: str, **parameters: Any) -> dict[str, Any]:
    job = Estimator(script, instance_type="local", image_uri="mine", **parameters)
    return sdk_arguments.for_sdk(job.arguments)


def test_the_sdk_takes_a_job_with_everything_that_it_would_refuse(script: str) -> None:
    spot = {"use_spot_instances": True, "max_run": 60, "max_wait": 90, "keep_alive_period_in_seconds": 60}
    sdks = arguments(script, checkpoint_s3_uri="s3://b/p", checkpoint_local_path="/c", instance_count=2, **spot)
    pytorch = v2.trainer(sdks, v2.local_session())
    assert not pytorch.use_spot_instances
    assert pytorch.checkpoint_s3_uri is None
    assert pytorch.instance_count == 2
    assert pytorch.environment == {"SMDDP_CHECKPOINT_S3_URI": "s3://b/p"}


def test_the_users_own_variable_is_his(script: str) -> None:
    own = {"SMDDP_CHECKPOINT_S3_URI": "s3://mine", "A": "1"}
    assert arguments(script, checkpoint_s3_uri="s3://b/p", environment=own)["environment"] == own
    assert "environment" not in arguments(script, checkpoint_s3_uri="file:///c")


@pytest.mark.parametrize("role", [None, "SageMakerRole"])
def test_nobody_is_asked_for_a_role(script: str, role: str | None) -> None:
    assert arguments(script, role=role)["role"].startswith("arn:aws:iam::")
    arn = "arn:aws:iam::123456789012:role/mine"
    assert arguments(script, role=arn)["role"] == arn


def test_to_sagemaker_gives_a_pytorch_that_the_sdk_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "more.py").touch()
    job = {"instance_type": "local", "image_uri": "mine", "checkpoint_s3_uri": "s3://b/p", "max_run": 60}
    pytorch = Estimator(script, dependencies=[tmp_path / "more.py"], **job).to_sagemaker()
    assert isinstance(pytorch.sagemaker_session, LocalSession)
    assert pytorch.checkpoint_s3_uri is None
    assert {path.name for path in Path(pytorch.source_dir).iterdir()} == {"train.py", "more.py"}
    assert "max_run: it does nothing in the SDK's Local Mode" in caplog.text


def test_a_session_of_ours_needs_no_region_and_uploads_no_code() -> None:
    session = v2.local_session()
    assert session.config == {"local": {"local_code": True}}
    assert session.boto_region_name
    assert session.sagemaker_config == {}, "which the SDK need not check at each look"
    sender = session.sagemaker_client.sagemaker_session
    assert sender.sagemaker_config["SageMaker"]["PythonSDK"]["Modules"]["TelemetryOptOut"] is True


def test_the_users_session_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    own = LocalSession()
    own.config = {"local": {"local_code": False, "container_config": {"shm_size": "1gb"}}}
    session = v2.local_session(own)
    assert session is not own
    assert session.config == own.config
    assert session.sagemaker_client.sagemaker_session.config == session.config
    assert own.sagemaker_client.sagemaker_session is own
    assert session.boto_region_name == "eu-west-1"


def test_a_session_of_aws_gives_the_sdks_local_mode_its_s3() -> None:
    boto_session = boto3.Session(region_name="eu-west-1")
    session = v2.local_session(Session(boto_session))
    assert v2.is_local(session)
    assert session.boto_session is boto_session


def test_the_sdks_own_pytorch_is_not_given_without_the_checkpoints_asked_for(script: str) -> None:
    job = Estimator(script, instance_type="local", image_uri="mine", checkpoint_s3_uri="file:///c")
    with pytest.raises(EstimatorError, match="checkpoint_s3_uri: the SDK's Local Mode mounts no directory"):
        job.to_sagemaker()
