"""The SDK, asked and built with."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from estimators.sdk import quiet, sessions, training_images
from estimators.sdk.training_images import Framework

PLAIN = Framework(
    region="us-east-1",
    instance_type="ml.g5.xlarge",
    instance_groups=None,
    distribution=None,
    entry_point="train.py",
    version=None,
    py_version=None,
    image_uri=None,
    compiler_config=None,
)


@pytest.fixture
def boto_session() -> Iterator[boto3.Session]:
    with mock_aws():
        yield boto3.Session(region_name="us-east-1")


def opted_out(session: Any) -> Any:
    return session.sagemaker_config["SageMaker"]["PythonSDK"]["Modules"]["TelemetryOptOut"]


def test_a_session_of_ours_opts_out_of_telemetry_and_knows_its_bucket(boto_session: boto3.Session) -> None:
    session = sessions.session(boto_session, default_bucket="mine")
    assert opted_out(session) is True
    assert session.default_bucket() == "mine"


@pytest.mark.parametrize("choice", [None, False])
def test_the_users_own_configuration_stays_as_it_is(
    choice: bool | None, boto_session: boto3.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules: dict[str, Any] = {"Session": {"DefaultS3Bucket": "configured"}}
    if choice is not None:
        modules["TelemetryOptOut"] = choice
    text = yaml.safe_dump({"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": modules}}})
    (tmp_path / "config.yaml").write_text(text)
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path / "config.yaml"))
    session = sessions.session(boto_session)
    assert opted_out(session) is (True if choice is None else choice)
    assert session.default_bucket() == "configured"
    assert (tmp_path / "config.yaml").read_text() == text


def test_the_configured_role_is_found(
    boto_session: boto3.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sessions.configured_role(sessions.session(boto_session)) is None
    role = "arn:aws:iam::123456789012:role/Configured"
    text = yaml.safe_dump({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": {"RoleArn": role}}})
    (tmp_path / "config.yaml").write_text(text)
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path / "config.yaml"))
    assert sessions.configured_role(None) == role
    assert sessions.configured_role(sessions.session(boto_session)) == role


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, "2.8.0"),
        ({"instance_type": "ml.m5.xlarge"}, "2.8.0"),
        ({"distribution": {"torch_distributed": {"enabled": True}}}, "2.8.0"),
        ({"distribution": {"pytorchddp": {"enabled": True}}}, "2.2.0"),
        ({"py_version": "py310"}, "2.2.0"),
        ({"version": "2.7"}, "2.7"),
    ],
)
def test_the_newest_version_that_the_sdk_accepts_is_chosen(changes: dict[str, Any], version: str) -> None:
    chosen, refusal = training_images.choose_versions(replace(PLAIN, **changes))
    assert refusal is None
    assert chosen.py_version is not None
    from packaging.version import Version

    # A newer SDK may know newer ones; the ones asked for stay.
    assert chosen.version is not None
    assert Version(chosen.version) >= Version(version)
    assert training_images.refusal(chosen) is None


def test_trainium_has_versions_of_its_own() -> None:
    chosen, refusal = training_images.choose_versions(replace(PLAIN, instance_type="ml.trn1.2xlarge"))
    assert (chosen.py_version, refusal) == ("py38", None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"instance_type": "ml.m5.xlarge", "distribution": {"torch_distributed": {"enabled": True}}},
            "supported only for GPU and Trainium",
        ),
        ({"version": "9.9.9"}, "Unsupported pytorch version: 9.9.9"),
        ({"py_version": "py27"}, "Unsupported Python version: py27"),
        ({"region": "mars-north-1"}, "Unsupported region"),
    ],
)
def test_what_the_sdk_refuses_comes_with_its_reason(changes: dict[str, Any], said: str) -> None:
    _chosen, refusal = training_images.choose_versions(replace(PLAIN, **changes))
    assert refusal is not None
    assert said in refusal


def test_asking_writes_nothing_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    training_images.refusal(
        replace(PLAIN, distribution={"parameter_server": {"enabled": True}}, instance_type="ml.p3.16xlarge")
    )
    assert not [record for record in caplog.records if record.name.startswith("sagemaker")]


def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the SDK is asked for from now on, nothing being known yet."""
    asked: list[dict[str, Any]] = []
    lookup = training_images.image_uris.get_training_image_uri
    monkeypatch.setattr(training_images, "_found", {})
    monkeypatch.setattr(
        training_images.image_uris, "get_training_image_uri", lambda **asks: asked.append(asks) or lookup(**asks)
    )
    return asked


def made(boto_session: boto3.Session, **changes: Any) -> Any:
    """Return the ``PyTorch`` of a job."""
    from estimators.sdk import v2

    arguments = {"entry_point": "train.py", "role": "arn:aws:iam::123456789012:role/A", "instance_count": 1}
    arguments |= {"instance_type": PLAIN.instance_type, "framework_version": "2.8.0", "py_version": "py312"} | changes
    return v2.trainer(arguments, sessions.session(boto_session, default_bucket="mine"))


def test_the_sdk_looks_an_image_up_once(boto_session: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = looked_up(monkeypatch)
    chosen, _ = training_images.choose_versions(PLAIN)
    assert made(boto_session, **chosen.arguments).training_image_uri() == training_images.image_uri(chosen)
    assert len(asked) == 1
    training_images.image_uri(replace(chosen, instance_type="ml.m5.xlarge"))
    assert len(asked) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"instance_type": "ml.m5.xlarge"},
        {"distribution": {"torch_distributed": {"enabled": True}}},
        {"distribution": {"pytorchddp": {"enabled": True}}, "framework_version": "2.2.0", "py_version": "py310"},
        {"image_uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"},
    ],
)
@pytest.mark.parametrize("region", [None, "eu-west-1"])
def test_an_image_is_asked_for_as_the_sdk_asks(
    changes: dict[str, Any], region: str | None, boto_session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sagemaker.pytorch import PyTorch

    asked = looked_up(monkeypatch)
    pytorch = made(boto_session, **changes)
    assert PyTorch.training_image_uri(pytorch, region) == pytorch.training_image_uri(region)
    theirs, ours = ({name: value for name, value in asks.items() if value not in (None, {})} for asks in asked)
    assert ours == theirs


def test_the_variables_of_pipelines_are_looked_up_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from sagemaker.workflow.parameters import ParameterString

    asked = looked_up(monkeypatch)
    chosen, _ = training_images.choose_versions(PLAIN)
    asked.clear()
    gpu, cpu = (
        training_images.image_uri(replace(chosen, instance_type=ParameterString("Type", default_value=name)))
        for name in ("ml.g5.xlarge", "ml.m5.xlarge")
    )
    assert ("-gpu-" in gpu, "-cpu-" in cpu, len(asked)) == (True, True, 2)


def test_the_maintenance_notice_is_silenced_for_a_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(quiet.SUPPRESS_VARIABLE, raising=False)
    with quiet.without_maintenance_notice():
        assert os.environ[quiet.SUPPRESS_VARIABLE] == "1"
    assert quiet.SUPPRESS_VARIABLE not in os.environ
    monkeypatch.setenv(quiet.SUPPRESS_VARIABLE, "")
    with quiet.without_maintenance_notice():
        assert os.environ[quiet.SUPPRESS_VARIABLE] == ""


@pytest.mark.slow
def test_sending_a_job_prints_nothing_and_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    program = """
import logging, os, sys
import boto3
from moto import mock_aws
from estimators import Estimator
def settings():
    return dict(os.environ), logging.getLogger().level, list(logging.getLogger().handlers), sys.excepthook
with mock_aws():
    before = settings()
    Estimator(
        __file__, role="arn:aws:iam::123456789012:role/A", instance_type="ml.g5.xlarge", image_uri="mine"
    ).fit(wait=False)
    assert settings() == before
"""
    (tmp_path / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != quiet.SUPPRESS_VARIABLE}
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment | {"AWS_DEFAULT_REGION": "us-east-1"},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_machine_without_the_sdk_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sagemaker.py").write_text("raise ModuleNotFoundError('no', name='sagemaker')\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from estimators import Estimator
Estimator("train.py", instance_type="ml.g5.xlarge").plan()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "pip install 'smddp[sagemaker]'" in result.stderr.splitlines()[-1]
