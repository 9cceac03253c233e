"""The parts of a local job that the SDK gets: its request, and the parameters of the SDK's own Local Mode."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.credentials import Credentials
from sagemaker.local import LocalSession
from sagemaker.session import Session

from estimators import Estimator
from estimators.checks import aws_limits
from estimators.errors import EstimatorError, Problem
from estimators.local.engine.errors import ApiError
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.transfers.objects import FileUri, S3Uri
from estimators.local_mode import request
from estimators.local_mode.fit import access, training_request
from estimators.local_mode.request import build_local
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import CODE_URI
from estimators.sdk import request_values, sessions, v2
from estimators.source_code import SourceCode


@pytest.fixture
def session() -> Any:
    return sessions.session_here(Session(boto3.Session("KEY", "SECRET", region_name="eu-west-1")))


@pytest.fixture
def parse(script: str, session: Any) -> Any:
    def of(inputs: Any = None, **parameters: Any) -> TrainingRequest:
        job = Estimator(script, instance_type="local", image_uri="mine", **parameters)
        code = SourceCode(entry_point="train.py", source_dir=str(Path(script).parent), dependencies=())
        completed = CompletedJob.of(job.arguments, session)
        built, refusal = build_local(completed, inputs, job_name="job", session=session)
        assert built is not None, refusal
        return training_request(built, completed.arguments, inputs, code=code)

    return of


def test_places_on_this_machine_are_seen_and_all_else_is_s3s(parse: Any, tmp_path: Path, script: str) -> None:
    data = {"here": f"file://{tmp_path}", "one": f"file://{script}", "there": "s3://data/train"}
    request = parse(data, checkpoint_s3_uri=f"file://{tmp_path}/c", output_path=f"file://{tmp_path}/out")
    assert [channel.name for channel in request.channels] == ["there"]
    assert request.synced_folders == ()  # no tensors of the Debugger's either, which the SDK would send to S3
    assert request.output == FileUri(path=tmp_path / "out")
    assert request.files is not None
    assert request.files.mounts == {
        "/opt/ml/input/data/here": tmp_path,
        f"/opt/ml/input/data/one/{Path(script).name}": Path(script),
        "/opt/ml/checkpoints": tmp_path / "c",
    }
    assert request.files.code == Path(script).parent
    assert request.hyperparameters["sagemaker_submit_directory"] == '"/opt/ml/code"'
    assert request.hyperparameters["sagemaker_program"] == '"train.py"'
    assert [(group.instance_type, group.count) for group in request.groups] == [("local", 1)]
    shown = [request.members[name] for name in ("ResourceConfig", "OutputDataConfig", "CheckpointConfig")]
    assert shown == [
        {"InstanceType": "local", "InstanceCount": 1},
        {"S3OutputPath": f"file://{tmp_path}/out"},
        {"S3Uri": f"file://{tmp_path}/c"},
    ]


def test_what_the_platform_can_do_is_asked_of_it(parse: Any) -> None:
    spot = {"use_spot_instances": True, "max_run": 60, "max_wait": 90, "keep_alive_period_in_seconds": 60}
    places = {"output_path": "s3://b/out", "checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/mine"}
    request = parse(instance_count=2, enable_network_isolation=True, **spot, **places)
    assert (request.spot, request.max_runtime, request.max_wait) == (True, 60, 90)
    assert request.network_isolation
    assert request.output == S3Uri(bucket="b", key="out/job/output")
    assert request.checkpoints is not None
    assert (str(request.checkpoints.uri), str(request.checkpoints.path)) == ("s3://b/c", "mine")
    assert not request.channels
    assert request.hyperparameters["sagemaker_submit_directory"] == '"/opt/ml/code"'


def test_what_the_plan_has_checked_is_what_the_platform_gets(
    script: str, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def checked(request: Any, _arguments: Any) -> Iterator[Problem]:
        seen["checked"] = json.dumps(request)
        return iter(())

    def parsed(request: Any) -> None:
        seen["parsed"] = json.dumps(request)
        raise ApiError("ValidationException", "seen")

    monkeypatch.setattr(aws_limits, "check_form", checked)
    monkeypatch.setattr(TrainingRequest, "parse", parsed)
    monkeypatch.setattr("tempfile.tempdir", str(Path(script).parent.parent))
    options = {"instance_count": 2, "enable_network_isolation": True, "hyperparameters": {"lr": 0.1}}
    job = Estimator(script, instance_type="local", image_uri="mine", **options)
    with pytest.raises(EstimatorError, match="seen"):
        job.fit({"there": "s3://data/train"})
    assert seen["parsed"] == seen["checked"].replace(CODE_URI, "/opt/ml/code")


def test_without_a_place_the_model_comes_here(parse: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse().output == FileUri(path=tmp_path / "runs" / "job")
    places = {"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/anywhere"}
    assert parse(**places).files.mounts == {"/anywhere": Path("/c")}


def test_what_the_platform_refuses_is_told_before_anything_runs(parse: Any) -> None:
    with pytest.raises(EstimatorError, match=r"The local platform refuses the job: CheckpointConfig.LocalPath is /c"):
        parse(checkpoint_s3_uri="s3://b/c", checkpoint_local_path="/c")


def test_a_repository_is_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    origin = tmp_path / "origin"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(origin))
    subprocess.run(["git", "init", "-q", "-b", "main", str(origin)], check=True)
    (origin / "code").mkdir()
    (origin / "code" / "train.py").touch()
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    repository = {"repo": "https://example.com/code.git", "branch": "main"}
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{origin}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", repository["repo"])
    asked = {"git_config": repository, "entry_point": "train.py", "source_dir": "code", "role": "mine"}
    found = request_values.cloned(asked)
    assert Path(found["source_dir"], "train.py").is_file()
    assert found.keys() == {"entry_point", "source_dir", "role"}
    with pytest.raises(EstimatorError, match="git_config: "):
        request_values.cloned({**asked, "entry_point": "other.py"})


@pytest.mark.parametrize("token", ["", "TOKEN"])
def test_a_host_gets_the_keys_and_the_endpoint_of_the_user(session: Any, token: str) -> None:
    session.boto_session = boto3.Session("KEY", "SECRET", token or None)
    keys = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET"} | (
        {"AWS_SESSION_TOKEN": token} if token else {}
    )
    assert access(session, "https://s3.eu-west-1.amazonaws.com") == keys
    assert access(session, "http://172.17.0.1:9000") == {"AWS_ENDPOINT_URL_S3": "http://172.17.0.1:9000", **keys}


def test_on_an_ec2_machine_a_host_asks_for_the_role_itself(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    role = Credentials("KEY", "SECRET", "TOKEN", method="iam-role")
    monkeypatch.setattr(session.boto_session, "get_credentials", lambda: role)
    assert access(session, "https://s3.amazonaws.com") == {"AWS_EC2_METADATA_DISABLED": "false"}
    monkeypatch.setattr(session.boto_session, "get_credentials", lambda: None)
    assert access(session, "https://s3.amazonaws.com") == {}


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def arguments(script: str, **parameters: Any) -> dict[str, Any]:
    job = Estimator(script, instance_type="local", image_uri="mine", **parameters)
    return request.for_sdk(job.arguments)


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
