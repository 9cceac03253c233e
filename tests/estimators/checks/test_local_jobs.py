"""What a plan says of a local job, and of one in the SDK's own Local Mode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import pytest
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.local import LocalSession

from estimators import Estimator
from estimators.plan import Plan

SPOT = ["use_spot_instances", "max_wait"]
WARM, LOSES = "keep_alive_period_in_seconds", "checkpoint_s3_uri"
AT_ONCE = {"use_spot_instances": True, "max_wait": 86400}
IMPORTS = {"plain": "print('training')\n", "smddp": "import smddp\n"}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    def of(inputs: Any = None, code: str = "plain", **parameters: Any) -> Plan:
        script = tmp_path / "train.py"
        script.write_text(IMPORTS[code])
        if parameters.pop("by_sdk", False):
            parameters["sagemaker_session"] = LocalSession(boto3.Session(region_name="us-east-1"))
        job = {"instance_type": "local", "image_uri": "mine", **parameters}
        return Estimator(str(script), **job).plan(inputs)

    return of


def parameters_of(problems: Any) -> list[str]:
    return [problem.parameter for problem in problems]


def test_a_good_job_needs_no_role_no_region_and_no_account(plan: Any, tmp_path: Path) -> None:
    places = {"checkpoint_s3_uri": "file:///tmp/mine", "output_path": "file:///tmp/out"}
    good = plan({"training": f"file://{tmp_path}"}, instance_count=2, distribution="torchrun", **places)
    assert good.problems == ()
    assert str(good) == "2 × local, torchrun"


def test_a_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / "recipe.yaml").write_text("run: {name: nova}\n")
    job = Estimator(training_recipe=str(tmp_path / "recipe.yaml"), instance_type="local", image_uri="mine")
    assert parameters_of(job.plan().errors) == ["training_recipe"]


@pytest.mark.parametrize(
    ("parameters", "warned", "by_sdk"),
    [
        ({"max_run": 60}, [], ["max_run"]),
        ({**AT_ONCE, "checkpoint_s3_uri": "s3://b/c"}, [], SPOT),
        (
            {"use_spot_instances": True, "max_wait": 86400, "keep_alive_period_in_seconds": 60},
            [LOSES, WARM],
            [WARM, *SPOT],
        ),
        ({"metric_definitions": [], "tags": []}, [], []),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss=(.*)"}]}, [], ["metric_definitions"]),
        ({"max_retry_attempts": 3, "tags": {"a": "b"}}, ["max_retry_attempts", "tags"], ["max_retry_attempts", "tags"]),
        ({"enable_network_isolation": True}, [], ["enable_network_isolation"]),
        ({"enable_network_isolation": False, "volume_size": 50}, ["volume_size"], ["volume_size"]),
        ({"disable_output_compression": True}, [], ["disable_output_compression"]),
    ],
)
@pytest.mark.slow
def test_what_does_nothing_is_told_once(plan: Any, parameters: Any, warned: list[str], by_sdk: list[str]) -> None:
    ours, sdks = plan(**parameters), plan(**parameters, code="smddp", by_sdk=True)
    assert not ours.errors + sdks.errors
    assert parameters_of(ours.warnings) == warned
    assert parameters_of(sdks.warnings) == by_sdk
    assert all("does nothing" in problem.found for problem in sdks.warnings)


def test_an_image_is_asked_for_where_aws_would_be(plan: Any) -> None:
    (problem,) = plan(image_uri=None).warnings
    assert problem.parameter == "image_uri"
    assert "smddp image build" in problem.remedy


def test_gpus_are_for_one_host(plan: Any) -> None:
    assert not plan(instance_type="local_gpu").problems
    (problem,) = plan(instance_type="local_gpu", instance_count=2).errors
    assert problem.parameter == "instance_count"


@pytest.mark.parametrize("answer", [True, NotImplementedError("AppType CodeEditor")])
def test_studio_is_refused_before_a_job_runs_in_vain(plan: Any, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def check_for_studio() -> bool:
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr("estimators.sdk.sessions.check_for_studio", check_for_studio)
    (problem,) = plan().errors
    assert problem.parameter == "instance_type"
    assert "estimators.local.LocalSageMaker" in problem.remedy


def test_a_session_of_aws_gives_its_s3(plan: Any) -> None:
    import sagemaker

    session = sagemaker.Session(boto3.Session(region_name="us-east-1"))
    assert not plan("s3://data/train", sagemaker_session=session).problems


@pytest.mark.parametrize(
    ("parameters", "errors", "warnings", "said"),
    [
        ({"checkpoint_s3_uri": "s3://b/p", "code": "smddp"}, 0, 0, ""),
        ({"checkpoint_s3_uri": "s3://b/p", "code": "plain"}, 0, 0, ""),
        ({"checkpoint_s3_uri": "s3://b/p", "code": "plain", "by_sdk": True}, 0, 1, "does not import smddp"),
        ({"checkpoint_s3_uri": "s3://b/p", "code": "smddp", "by_sdk": True}, 0, 0, ""),
        ({"checkpoint_s3_uri": "file:///c", "by_sdk": True}, 1, 0, "mounts no directory"),
        ({"checkpoint_s3_uri": "s3://b"}, 0, 1, "a whole bucket"),
        ({"checkpoint_s3_uri": "s3://b", "code": "smddp", "by_sdk": True}, 0, 0, ""),
        ({"checkpoint_s3_uri": "s3://b/p", "output_path": "s3://b/p/out"}, 1, 0, "deleted with the checkpoints"),
        ({"checkpoint_s3_uri": "s3://b/p", "output_path": "s3://b/p/out", "code": "smddp", "by_sdk": True}, 0, 0, ""),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/opt/ml/other"}, 0, 0, ""),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "relative"}, 1, 0, "can lie in 'relative'"),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/opt/ml"}, 1, 0, "can lie in '/opt/ml'"),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/"}, 1, 0, "can lie in '/'"),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/opt/ml/model"}, 1, 0, "/opt/ml/checkpoints"),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/opt/ml/input/data/x"}, 1, 0, "/data/x"),
        ({"checkpoint_s3_uri": "file:///c", "checkpoint_local_path": "/mnt/../opt"}, 1, 0, "/mnt/../opt"),
        ({"checkpoint_local_path": "/opt/ml/other"}, 0, 1, "checkpoint_s3_uri='file:///directory'"),
        ({"checkpoint_s3_uri": "file:///etc/hostname"}, 1, 0, "/etc/hostname is not a directory"),
        ({"checkpoint_s3_uri": "file:///etc/mine"}, 1, 0, "/etc/mine belongs to the system"),
        ({"checkpoint_s3_uri": "file:///tmp/../tmp"}, 1, 0, "/tmp belongs to the system"),
        ({"checkpoint_s3_uri": "file:///"}, 1, 0, "/ holds all home directories"),
        ({"checkpoint_s3_uri": f"file://{Path.home()}"}, 1, 0, "is your home directory"),
        ({"checkpoint_s3_uri": "file://"}, 1, 0, "holds no absolute path"),
        ({"checkpoint_s3_uri": "file://checkpoints"}, 1, 0, "holds no absolute path"),
        ({"checkpoint_s3_uri": "./c"}, 1, 0, "Give file:///directory"),
        ({"output_path": "./models"}, 1, 0, "output_path: './models' is no place"),
    ],
)
def test_places_are_checked(plan: Any, parameters: Any, errors: int, warnings: int, said: str) -> None:
    found = plan(**parameters)
    assert (len(found.errors), len(found.warnings)) == (errors, warnings), str(found)
    assert said in str(found)


def test_a_directory_of_another_user_is_refused(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    (problem,) = plan(checkpoint_s3_uri=f"file://{tmp_path}").errors
    assert f"{tmp_path} belongs to another user" in problem.found
    assert not plan(checkpoint_s3_uri=f"file://{tmp_path}/new").errors


def test_a_directory_for_checkpoints_is_for_this_machine_only(plan: Any) -> None:
    role = "arn:aws:iam::123456789012:role/mine"
    here = plan(instance_type="ml.m5.xlarge", role=role, checkpoint_s3_uri="file:///c")
    assert "only instance_type='local' can keep checkpoints" in str(here)


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost:9000"])
@pytest.mark.slow
def test_an_s3_that_containers_cannot_reach_is_refused(plan: Any, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}")
    (problem,) = plan(checkpoint_s3_uri="s3://b/p", code="smddp", by_sdk=True).errors
    assert f"S3 is at http://{host}" in problem.found
    ours = plan(checkpoint_s3_uri="s3://b/p")
    assert not ours.errors, "this process copies them"
    assert parameters_of(ours.warnings) == ["checkpoint_s3_uri"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://172.17.0.1:9000")
    assert not plan(checkpoint_s3_uri="s3://b/p", code="smddp", by_sdk=True).errors


@pytest.mark.parametrize(
    ("mode", "by_sdk", "directory", "found"),
    [
        ("File", False, False, "00"),
        ("Pipe", False, False, "00"),
        ("Pipe", False, True, "10"),
        ("Pipe", True, False, "10"),
        ("FastFile", False, False, "01"),
        ("FastFile", True, False, "01"),
    ],
)
@pytest.mark.parametrize("of", ["the job", "a channel"])
def test_data_come_as_they_can(
    plan: Any, tmp_path: Path, of: str, mode: str, by_sdk: bool, directory: bool, found: str
) -> None:
    job, channel = ({"input_mode": mode}, None) if of == "the job" else ({}, mode)
    place = f"file://{tmp_path}" if directory else "s3://data/train"
    told = plan({"train": TrainingInput(place, input_mode=channel)}, by_sdk=by_sdk, **job)
    assert f"{len(told.errors)}{len(told.warnings)}" == found, str(told)


@pytest.mark.parametrize(
    ("hosts", "by_sdk", "directory", "errors"),
    [(2, False, False, 0), (1, True, False, 1), (1, False, True, 0), (2, False, True, 1)],
)
def test_sharded_data_are_refused_where_they_would_be_whole(
    plan: Any, tmp_path: Path, hosts: int, by_sdk: bool, directory: bool, errors: int
) -> None:
    place = f"file://{tmp_path}" if directory else "s3://data/train"
    found = plan({"train": TrainingInput(place, distribution="ShardedByS3Key")}, instance_count=hosts, by_sdk=by_sdk)
    assert parameters_of(found.errors) == ["inputs['train']"] * errors
    assert not found.warnings


def test_file_systems_of_aws_are_refused(plan: Any) -> None:
    (problem,) = plan({"train": FileSystemInput("fs-1234", "FSxLustre", "/fsx")}).errors
    assert "no FSx or EFS" in problem.found


def test_data_on_this_machine_must_be_there(plan: Any, tmp_path: Path) -> None:
    for missing in ("file:///nowhere", TrainingInput("file:///nowhere")):
        (problem,) = plan({"train": missing}).errors
        assert (problem.parameter, problem.found) == ("inputs['train']", "there is no /nowhere")
    assert f"file://{tmp_path}" in str(plan(str(tmp_path)))
    assert not plan(f"file://{tmp_path}").problems
    (tmp_path / "12:30").mkdir()
    for place in (f"file://{tmp_path}/12:30", TrainingInput(f"file://{tmp_path}/12:30")):
        assert not plan(place).problems
        assert f"can't mount file://{tmp_path}/12:30" in str(plan(place, by_sdk=True))


@pytest.mark.parametrize("name", ["..", "../../../../tmp", "a/b", ""])
@pytest.mark.parametrize("place", ["s3://data/train", "file:///tmp"])
def test_channels_have_names_that_sagemaker_takes(plan: Any, name: str, place: str) -> None:
    assert plan({name: place}).errors


def test_on_sagemaker_nothing_of_this_is_said(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    role = "arn:aws:iam::123456789012:role/mine"
    sharded = TrainingInput("s3://data/train", distribution="ShardedByS3Key", input_mode="Pipe")
    assert not plan({"train": sharded}, instance_type="ml.g5.xlarge", role=role, instance_count=2, max_run=60).problems
