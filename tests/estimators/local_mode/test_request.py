"""The request of a local job, and what a host is told of S3."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.credentials import Credentials
from sagemaker.session import Session

from estimators import Estimator
from estimators.checks import aws_limits
from estimators.errors import EstimatorError, Problem
from estimators.local.engine.errors import ApiError
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.transfers.objects import FileUri, S3Uri
from estimators.local_mode.fit import training_request
from estimators.local_mode.request import build_local
from estimators.local_mode.run import access
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import CODE_URI
from estimators.sdk import request_values, sessions
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
