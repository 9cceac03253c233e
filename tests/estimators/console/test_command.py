"""``smddp console --local --write`` interrupts a job that really runs, follows it over both attempts, and stops it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from estimators.local import LocalSageMaker
from estimators.metric_definition import regex_of_line
from smddp import Checkpointer
from smddp.cli.app import app
from tests.estimators.console.conftest import Client, entered
from tests.estimators.local.submitted_jobs import await_end, await_that, job_request
from tests.fork_python import ForkPython

_SCRIPT = (
    "f=/opt/ml/checkpoints/step; i=$(cat $f || echo 0); while :; do i=$((i+1)); echo $i > $f; "
    "echo step=$i loss=0.$i time_data=0.2 time_forward=0.6; sleep 0.1; done"
)
_METRICS = ("loss", "time_data", "time_forward")


@pytest.fixture
def platform(fork_server: ForkPython, tmp_path: Path) -> Iterator[LocalSageMaker]:
    with fork_server.in_use(), LocalSageMaker(tmp_path / "platform", storage="disk", grace_seconds=5) as platform:
        yield platform


@pytest.fixture
def client(platform: LocalSageMaker, tmp_path: Path) -> Iterator[Client]:
    """Who has used the link that the program printed."""
    program = (sys.executable, "-m", "smddp.cli", "console", "--local", "--write")
    console = subprocess.Popen([*program, "--directory", str(tmp_path / "platform")], stdout=subprocess.PIPE, text=True)
    with console:
        assert console.stdout is not None
        yield entered(console.stdout.readline().rpartition(" ")[2].strip())
        assert console.stdout.readline().startswith("opened. In another browser: http://127.0.0.1:")
        console.terminate()
        assert console.wait(60) == 0


def started(platform: LocalSageMaker) -> None:
    """Begin a spot job."""
    bucket = platform.default_bucket
    request = job_request(
        platform,
        "spot",
        _SCRIPT,
        CheckpointConfig={"S3Uri": f"s3://{bucket}/checkpoints"},
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 600},
    )
    definitions = [{"Name": metric, "Regex": regex_of_line(metric)} for metric in _METRICS]
    request["AlgorithmSpecification"]["MetricDefinitions"] = definitions
    platform.boto_session.client("sagemaker").create_training_job(**request)


def put_checkpoints(s3: Any, bucket: str, directory: Path) -> None:
    """Put a valid checkpoint there, and one that lost a file."""
    with Checkpointer(directory, {"model": torch.nn.Linear(4, 1)}) as checkpointer:
        for step in (3, 7):
            checkpointer.save(step=step, epoch=0, metrics={"loss": 0.5})
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        key = str(path.relative_to(directory))
        if not (key.startswith("step-000000000007") and path.suffix == ".safetensors"):
            s3.upload_file(str(path), bucket, f"checkpoints/{key}")


@pytest.mark.seaweedfs
@pytest.mark.namespaces
@pytest.mark.slow
def test_a_job_is_interrupted_followed_and_stopped(platform: LocalSageMaker, client: Client, tmp_path: Path) -> None:
    put_checkpoints(platform.boto_session.client("s3"), platform.default_bucket, tmp_path / "saved")
    started(platform)

    def drawn(attempts: int) -> str:
        """The page, once it draws so many attempts."""
        page = client.text("/jobs/spot")
        lines = re.findall(r"<(?:polyline|circle) class=\"(?:line|dot) colour-0\"", page)
        return page if len(lines) == attempts else ""

    await_that(lambda: drawn(1))
    answer = client.ask("/jobs/spot/interrupt", "POST", Origin=client.origin)
    assert (answer.status, answer.headers["Location"]) == (303, f"{client.root}/jobs/spot")
    page = await_that(lambda: drawn(2))
    assert "attempt 2</text>" in page
    assert '<span class="kind kind-lost"></span>Interrupted' in page
    assert re.findall(r"<span>(\w+)</span><b>(\d+\.\d) %</b>", page) == [("data", "25.0"), ("forward", "75.0")]

    checkpoints = client.text("/jobs/spot/checkpoints")
    assert re.findall(r'<td class="number">(\d+)</td><td class="number">1</td>', checkpoints) == ["7", "3"]
    assert re.findall(r'status-(\w+)">\1</span>( <span)?', checkpoints)[-2:] == [("damaged", " <span"), ("valid", "")]
    assert client.ask("/jobs/spot/resume", "POST", Origin=client.origin).status == 409  # it still runs

    client.ask("/jobs/spot/stop", "POST", Origin=client.origin)
    assert await_end(platform, "spot")["TrainingJobStatus"] == "Stopped"
    await_that(lambda: 'data-poll="0"' in client.text("/jobs/spot"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--local", "--directory", "nothing"), r"smddp console: no platform runs on nothing: start one with"),
        (("--local", "--region", "eu-west-1"), "--region and --profile are for AWS"),
        (("--directory", "x"), "add --local"),
        (("--profile", "nobody"), r"AWS can't be asked: .*nobody.* Correct"),
        ((), "no AWS region is configured. Give --region"),
        (("--region", "us-east-1"), "no AWS credentials are configured. Give --profile"),
        (("--region", "no region"), r"AWS can't be asked: .*no region"),
    ],
)
def test_what_can_not_be_shown_is_said_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if "no region" in arguments:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["console", *arguments])
    assert run.exit_code == 2
    assert re.search(said, " ".join(run.output.replace("│", " ").split()))
