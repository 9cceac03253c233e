"""Whole jobs in containers, through the API: hosts that are lost, and a platform that is."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators.docker.docker_program import docker
from estimators.local import Docker, LocalSageMaker
from estimators.local.errors import LocalPlatformError
from tests.docker.images import find_base
from tests.estimators.local import submitted_jobs
from tests.estimators.local.submitted_jobs import await_end, await_that, messages

IMAGE = "account.dkr.ecr.us-east-1.amazonaws.com/training:1"
submit = functools.partial(submitted_jobs.submit, image=IMAGE)
WAITS = 'trap "exit 75" TERM; echo up; while :; do sleep 0.1; done'


@pytest.fixture(scope="module")
def settings() -> Docker:
    return Docker(images={"*.amazonaws.com/training:*": find_base()})


@pytest.fixture(scope="module")
def platform(settings: Docker) -> Iterator[LocalSageMaker]:
    with LocalSageMaker(grace_seconds=10, executor=settings) as platform:
        yield platform


def containers(name: str, host: str = "") -> list[str]:
    return docker("ps", "-aq", "--filter", f"label=smddp.job={name}", "--filter", f"name={host}$").split()


def networks(name: str) -> list[str]:
    return docker("network", "ls", "-q", "--filter", f"label=smddp.job={name}").split()


@pytest.mark.docker
def test_a_killed_host_fails_the_job_within_30_seconds_by_its_name(platform: LocalSageMaker) -> None:
    name = submit(platform, WAITS, hosts=2)
    await_that(lambda: all("up" in messages(platform, name, host) for host in ("algo-1", "algo-2")))
    docker("kill", *containers(name, "algo-2"))
    killed = time.monotonic()
    job = await_end(platform, name)
    assert time.monotonic() - killed < 30
    assert job["TrainingJobStatus"] == "Failed"
    reason = "InternalServerError: algo-2 was lost: its container was killed from outside (exit code 137)."
    assert job["FailureReason"] == reason
    assert messages(platform, name, "algo-2")[-1].startswith("[platform] algo-2 was lost: its container was killed")
    assert containers(name) == []
    await_that(lambda: not networks(name))


@pytest.mark.docker
def test_a_processing_job_runs_its_image_with_its_inputs_and_cut_off_if_it_asks_for_that(
    platform: LocalSageMaker,
) -> None:
    client, s3 = platform.boto_session.client("sagemaker"), platform.boto_session.client("s3")
    bucket, place = platform.default_bucket, "/opt/ml/processing"
    s3.put_object(Bucket=bucket, Key="processing/in/a", Body=b"content")
    source = {"S3Uri": f"s3://{bucket}/processing/in", "LocalPath": f"{place}/in", "S3DataType": "S3Prefix"}
    target = {"S3Uri": f"s3://{bucket}/processing/out", "LocalPath": f"{place}/out", "S3UploadMode": "EndOfJob"}
    reach = (
        "import os, socket, urllib.parse as p\n"
        "to = p.urlsplit(os.environ['AWS_ENDPOINT_URL'])\n"
        "try:\n    socket.create_connection((to.hostname, to.port), 2)\n    print('reached')\n"
        "except OSError:\n    print('cut off')"
    )
    script = f'cp {place}/in/a {place}/out/$(hostname) && python3 -c "$REACH" > {place}/out/platform'
    # No entrypoint: what the image runs is given the arguments alone, and no `train`.
    application = {"ImageUri": IMAGE, "ContainerArguments": ["sh", "-c", script]}
    client.create_processing_job(
        ProcessingJobName="in-docker",
        ProcessingInputs=[{"InputName": "in", "S3Input": source}],
        ProcessingOutputConfig={"Outputs": [{"OutputName": "out", "S3Output": target}]},
        ProcessingResources={"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}},
        AppSpecification=application,
        Environment={"REACH": reach},
        NetworkConfig={"EnableNetworkIsolation": True},
        RoleArn=platform.role,
    )

    def ended() -> dict[str, Any] | None:
        job = client.describe_processing_job(ProcessingJobName="in-docker")
        return job if job["ProcessingJobStatus"] in submitted_jobs.ENDED else None

    job = await_that(ended)
    assert job["ProcessingJobStatus"] == "Completed", job
    for name, content in (("algo-1", b"content"), ("platform", b"cut off\n")):
        assert s3.get_object(Bucket=bucket, Key=f"processing/out/{name}")["Body"].read() == content
    await_that(lambda: not networks("in-docker"))  # it goes by itself, when the job has ended


@pytest.mark.docker
def test_links_of_a_program_bring_no_file_of_this_machine_to_anyone(platform: LocalSageMaker, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    script = """
        cd /opt/ml && echo 1 > checkpoints/step-1 && ln -s /opt/ml/checkpoints/step-1 checkpoints/latest
        rm -rf model output/data && ln -s "$HOST" model && ln -s "$HOST" output/data
        ln -s "$HOST/secret" output/failure; ln -s "$HOST/secret" checkpoints/stolen; exit 3
    """
    bucket, prefix = platform.default_bucket, uuid.uuid4().hex
    name = submit(
        platform,
        'eval "$SCRIPT"',
        Environment={"SCRIPT": script, "HOST": str(tmp_path)},
        CheckpointConfig={"S3Uri": f"s3://{bucket}/{prefix}"},
    )
    job = await_end(platform, name)
    reason, _, problem = job["FailureReason"].partition("; ")
    assert reason == "AlgorithmError: algo-1 wrote no /opt/ml/output/failure, exit code: 3"
    assert "It leads out of /opt/ml (/opt/ml/output/data). All files are kept in " in problem
    shutil.rmtree(problem.rpartition(" ")[2].rstrip("."))
    list_objects = platform.boto_session.client("s3").list_objects_v2
    saved = list_objects(Bucket=bucket, Prefix=prefix)["Contents"]
    assert {item["Key"].rpartition("/")[2]: item["Size"] for item in saved} == {"step-1": 2, "latest": 2}
    assert list_objects(Bucket=bucket, Prefix=f"out/{name}")["KeyCount"] == 0
    assert sorted(messages(platform, name, "algo-1")) == [
        f"[platform] /opt/ml/{path} is passed over: it leads out of /opt/ml"
        for path in ("checkpoints/stolen", "output/data", "output/failure")
    ]


@pytest.mark.docker
def test_a_link_in_a_pipes_place_writes_no_file_of_this_machine(platform: LocalSageMaker, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    s3, bucket, prefix = platform.boto_session.client("s3"), platform.default_bucket, uuid.uuid4().hex
    s3.put_object(Bucket=bucket, Key=f"{prefix}/object", Body=b"written")
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/{prefix}/"}}
    name = submit(
        platform,
        f'ln -sf "$HOST/kept" /opt/ml/input/data/train_0; {WAITS}',
        Environment={"HOST": str(tmp_path)},
        InputDataConfig=[{"ChannelName": "train", "InputMode": "Pipe", "DataSource": source}],
    )
    assert "something else in the pipe's place" in await_end(platform, name)["FailureReason"]
    assert kept.read_text() == "kept"


@pytest.mark.docker
@pytest.mark.seaweedfs
def test_a_program_reaches_the_platform_and_its_storage_on_disk(settings: Docker) -> None:
    ask = (
        "import os, urllib.request as u, urllib.error as e\n"
        "for name in ('AWS_ENDPOINT_URL', 'AWS_ENDPOINT_URL_S3'):\n"
        "    try: u.urlopen(os.environ[name] + '/bucket?list-type=2', timeout=20)\n"
        "    except e.HTTPError as error: print(name, error.code, 'answers to' in error.read().decode())\n"
    )
    with LocalSageMaker(executor=settings, storage="disk") as platform:
        name = submit(platform, 'python3 -c "$ASK"', Environment={"ASK": ask})
        assert await_end(platform, name)["TrainingJobStatus"] == "Completed"
        assert messages(platform, name, "algo-1") == ["AWS_ENDPOINT_URL 403 False", "AWS_ENDPOINT_URL_S3 403 False"]


@pytest.mark.docker
def test_nothing_is_left_when_the_platform_is_killed(settings: Docker) -> None:
    with LocalSageMaker(executor=settings) as platform:
        name = submit(platform, WAITS)
        await_that(lambda: "up" in messages(platform, name, "algo-1"))
        os.kill(platform.server_pid, signal.SIGKILL)
    await_that(lambda: not containers(name) and not networks(name))


@pytest.mark.docker
def test_an_image_that_nothing_maps_is_refused_when_the_job_is_sent(platform: LocalSageMaker) -> None:
    with pytest.raises(
        ClientError, match=r"ValidationException.*TrainingImage: .*/other:1 is no image on this machine"
    ):
        submit(platform, "true", image="account.dkr.ecr.us-east-1.amazonaws.com/other:1")


def test_without_a_docker_engine_the_platform_does_not_start_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    with pytest.raises(LocalPlatformError, match=r"No Docker engine answers|no `docker` program"):
        LocalSageMaker(tmp_path, executor=Docker()).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_can_not_be_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = LocalSageMaker(tmp_path)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        platform.start()
    assert list(tmp_path.iterdir()) == []
