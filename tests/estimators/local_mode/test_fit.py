"""Whole local jobs, on containers: on our Docker executor, and in the SDK's own Local Mode."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from sagemaker.inputs import TrainingInput
from sagemaker.local import LocalSession

from estimators import Estimator
from estimators.docker.docker_program import docker
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.local import LocalSageMaker
from tests.docker.cells import FIT_AGAIN
from tests.docker.images import build_images
from tests.docker.jobs import EPOCHS, LAST_STEP, SCRIPTS, write_digits
from tests.docker.proof import Proof

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

SOMEBODY = 1234
"""A user who can't remove what a container's root wrote."""

SUBMIT = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from estimators import Estimator
for job in json.loads(sys.argv[1]):
    inputs = job.pop("inputs", None)
    print("model:", Estimator(**job).fit(inputs).model_data)
"""


@pytest.fixture(scope="session")
def built_image() -> str:
    return build_images().smddp


@pytest.fixture
def image(built_image: str, home: Path) -> Iterator[str]:
    """A name for the image that only this test uses, and with which its jobs' names begin. Afterwards no container or
    network of its jobs is left, and nothing in the temporary directory."""
    name = f"smddp-test-{uuid4().hex[:8]}"
    docker("tag", built_image, name)
    yield name
    try:
        deadline = time.monotonic() + 60
        while left := [*left_in_docker(name), *(home / "tmp").iterdir()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
    finally:
        docker("rmi", "--no-prune", name)


def left_in_docker(job: str) -> list[str]:
    listings = (("ps", "--all"), ("network", "ls"))
    labels = [docker(*each, "--filter", "label=smddp.job", "--format", '{{.Label "smddp.job"}}') for each in listings]
    return [label for label in "\n".join(labels).splitlines() if label.startswith(job)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of whoever sends the job, who has no AWS."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(script: str, home: Path) -> str:
    path = home / "train.py"
    path.write_text(script)
    return str(path)


def submission(*jobs: dict[str, Any]) -> list[str]:
    return [sys.executable, "-c", SUBMIT, json.dumps(jobs)]


def as_somebody(home: Path) -> list[str]:
    """Runs a command as another user than root, who may read root's Python and use Docker; as oneself, if not root."""
    if os.getuid() != 0:
        return []
    for path in [home, *home.rglob("*")]:
        os.chown(path, SOMEBODY, SOMEBODY)
    group = Path("/var/run/docker.sock").stat().st_gid
    may_read = "+dac_read_search"
    return [
        *(shutil.which("setpriv") or "setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", f"--groups={group}"),
        *(f"--inh-caps={may_read}", f"--ambient-caps={may_read}", "env", f"HOME={home}"),
    ]


def test_two_hosts_train_and_the_next_fit_goes_on_from_their_checkpoints_on_one(
    home: Path, image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (home / "data").mkdir()
    write_digits(home / "data" / "digits.npz")
    job = {
        "entry_point": "digits.py",
        "source_dir": str(SCRIPTS),
        "instance_type": "local",
        "image_uri": image,
        "distribution": "torchrun",
        "environment": {"OMP_NUM_THREADS": "1"},
        "checkpoint_s3_uri": f"file://{home}/checkpoints",
        "inputs": {"training": f"file://{home}/data"},
    }
    jobs = [
        {**job, "instance_count": hosts, "hyperparameters": {"epochs": epochs}}
        for hosts, epochs in ((2, EPOCHS), (1, EPOCHS + 1))
    ]
    result = subprocess.run(
        [*as_somebody(home), *submission(*jobs)], capture_output=True, text=True, check=False, timeout=500
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    lines = result.stdout.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("model: ")]
    Proof.of_this_run(tmp_path_factory).check(FIT_AGAIN, "\n".join(lines[: ends[0]]))
    assert any(line.startswith("algo-1 | ") and "starting from the beginning" in line for line in lines[: ends[0]])
    resumed = f"resumed at step {LAST_STEP}, in epoch {EPOCHS + 1}"
    assert any(line.startswith("algo-1 | ") and resumed in line for line in lines[ends[0] :])
    assert any(line.startswith("algo-2 | ") for line in lines)
    models = [Path(lines[number].removeprefix("model: file://")) for number in ends]
    assert [model.parent.parent for model in models] == [home / "runs"] * 2
    with tarfile.open(models[1]) as archive:
        assert "model.pt" in " ".join(archive.getnames())
    assert list((home / "checkpoints").glob(f"step-*{LAST_STEP * (EPOCHS + 1) // EPOCHS}"))
    assert {path.stat().st_uid for path in home.rglob("*")} == {home.stat().st_uid}


def test_a_failure_has_its_reason_and_its_host(
    home: Path, image: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    script = write(
        "import os, time\n"
        "host = os.environ['SM_CURRENT_HOST']\n"
        "print('this is', host, flush=True)\n"
        "if host == 'algo-2':\n"
        "    raise ValueError('enough')\n"
        "time.sleep(100)\n",
        home,
    )
    job = Estimator(script, instance_type="local", instance_count=2, image_uri=image)
    began = time.monotonic()
    with pytest.raises(TrainingJobFailed, match=r"-fails failed .*AlgorithmError: .*ValueError: enough") as failed:
        job.fit(job_name=f"{image}-fails")
    assert time.monotonic() - began < 60
    assert (failed.value.job_name, failed.value.status) == (f"{image}-fails", "Failed")
    assert "algo-2 | this is algo-2\n" in capfd.readouterr().out
    assert not [record.getMessage() for record in caplog.records if record.name.partition(".")[0] == "sagemaker"]


def test_a_host_that_is_done_leaves_the_others_their_time(home: Path, image: str) -> None:
    script = write(
        "import os, pathlib, time\n"
        "host = os.environ['SM_CURRENT_HOST']\n"
        "print('loss=0.5')\n"
        "time.sleep(4 if host == 'algo-2' else 0)\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], host).write_text('done')\n"
        "pathlib.Path('/opt/ml/checkpoints', host).touch()\n"
        "assert pathlib.Path('/opt/ml/input/data/script/train.py').read_text()\n",
        home,
    )
    job = Estimator(
        script,
        instance_type="local",
        instance_count=2,
        image_uri=image,
        output_path=f"file://{home}/out",
        checkpoint_s3_uri=f"file://{home}/at 12:30, for $5",
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
    ).fit({"script": f"file://{script}"}, logs=False)
    assert job.status == "Completed"
    assert job.final_metrics() == {"loss": 0.5}
    assert job.model_data == f"file://{home}/out/model.tar.gz"
    assert sorted(path.name for path in (home / "at 12:30, for $5").iterdir()) == ["algo-1", "algo-2"]
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        assert sorted(archive.getnames()) == ["algo-1", "algo-2"]
    with pytest.raises(EstimatorError, match="nothing keeps the log of a local job"):
        list(job.logs())


TRAINS_UNTIL_TOLD = """
import os, pathlib, signal, sys, time
def save(*_):
    print("told", flush=True)
    while "STUBBORN" in os.environ:
        signal.pause()
    pathlib.Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"]).write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True: time.sleep(0.1)
"""


@pytest.fixture
def training(home: Path, image: str, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A job of two hosts in the middle of its training, sent by a process of its own."""
    job = {
        "entry_point": write(TRAINS_UNTIL_TOLD, home),
        "instance_type": "local",
        "instance_count": 2,
        "image_uri": image,
        "checkpoint_s3_uri": f"file://{home}/checkpoints",
        "environment": getattr(request, "param", {}),
    }
    # A run of the tests under nohup ignores SIGHUP, and so would all that it starts.
    command = ["env", "--default-signal=HUP", *submission(job)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said = []
        while sum("| training" in line for line in said) < 2:
            line = process.stdout.readline()
            assert line, "".join(said)
            said.append(line)
        yield process
        process.kill()


def test_ctrl_c_is_a_stop_with_a_checkpoint(home: Path, training: subprocess.Popen[str]) -> None:
    assert training.stdout is not None
    training.send_signal(signal.SIGINT)
    said = training.stdout.read()
    assert training.wait() == -signal.SIGINT
    assert "120 s to save a checkpoint" in said
    assert f"the next fit() resumes from the checkpoints in file://{home}/checkpoints, if any" in said
    assert "Traceback" not in said
    assert said.count("| told") == 2
    assert "| told" not in said.partition("was interrupted")[2], "fit() returned before its hosts had ended"
    assert sorted(path.name for path in (home / "checkpoints").iterdir()) == ["algo-1", "algo-2"]


@pytest.mark.parametrize("training", [{"STUBBORN": "1"}], indirect=True)
def test_ctrl_c_once_more_ends_the_hosts_at_once(training: subprocess.Popen[str]) -> None:
    assert training.stdout is not None
    os.killpg(training.pid, signal.SIGINT)  # as a terminal does, to all programs of the foreground
    while "| told" not in training.stdout.readline():
        assert training.poll() is None
    os.killpg(training.pid, signal.SIGINT)
    began = time.monotonic()
    said = training.stdout.read()
    assert "removing the containers at once" in said
    assert "Traceback" not in said
    assert training.wait() == -signal.SIGINT
    assert time.monotonic() - began < 60  # of 120 s in which the hosts may save


def test_a_host_killed_from_outside_is_the_one_that_is_named(training: subprocess.Popen[str], image: str) -> None:
    listed = docker("ps", "--format", '{{.ID}} {{.Names}} {{.Label "smddp.job"}}').splitlines()
    (second,) = [line.split()[0] for line in listed if f"-algo-2 {image}" in line]
    docker("kill", second)
    assert training.stdout is not None
    said = training.stdout.read()
    assert "InternalServerError: algo-2 was lost" in said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_fit_leaves_no_containers(home: Path, training: subprocess.Popen[str], number: signal.Signals) -> None:
    os.killpg(training.pid, number)  # as a terminal does that is closed
    deadline = time.monotonic() + 60
    while list((home / "tmp").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert sorted(path.name for path in (home / "checkpoints").iterdir()) == ["algo-1", "algo-2"]


USES_S3 = """
import os, pathlib
print("s3 is", os.environ["AWS_ENDPOINT_URL_S3"], "for", os.environ["AWS_ACCESS_KEY_ID"])
assert len(os.listdir("/opt/ml/input/data/training")) == 1, "of two objects, each host gets one"
pathlib.Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"]).write_text("saved")
pathlib.Path("/opt/ml/model/price").write_text(os.environ["PRICE"])
"""


def test_the_users_own_session_brings_and_takes_what_is_on_s3(
    home: Path, image: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with LocalSageMaker() as aws:
        s3, bucket = aws.boto_session.client("s3"), f"s3://{aws.default_bucket}"
        for key in ("data/1/here", "data/2/here"):
            s3.put_object(Bucket=aws.default_bucket, Key=key)
        job: dict[str, Any] = {
            "entry_point": write(USES_S3, home),
            "instance_type": "local",
            "instance_count": 2,
            "image_uri": image,
            "environment": {"PRICE": "5$HOME$$"},
            "sagemaker_session": aws.session,
        }
        data = {"training": TrainingInput(f"{bucket}/data", distribution="ShardedByS3Key")}
        places = {"output_path": f"{bucket}/models", "checkpoint_s3_uri": f"{bucket}/c"}
        done = Estimator(**job, **places).fit(data, job_name=f"{image}-a")
        assert (done.model_data, done.checkpoint_s3_uri) == (
            f"{bucket}/models/{image}-a/output/model.tar.gz",
            f"{bucket}/c",
        )
        keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=aws.default_bucket)["Contents"]]
        assert {"c/algo-1", "c/algo-2"} < set(keys)
        keys = s3.meta.endpoint_url, aws.boto_session.get_credentials().access_key
        assert "algo-2 | s3 is {} for {}\n".format(*keys) in capfd.readouterr().out
        with pytest.raises(TrainingJobFailed, match="the bucket absent does not exist"):
            Estimator(**job, output_path="s3://absent/models").fit(data)
    assert not (home / "runs").exists()


BOTH_HOSTS = """
import smddp, torch.distributed
def main(job: smddp.Job) -> None:
    # One write: docker compose shows what comes of two streams as it comes, and mixes pieces of lines.
    print(f"rank {job.cluster.rank} of {job.cluster.world_size} on {job.cluster.node_count} hosts")
    torch.distributed.barrier()
smddp.run(main)
"""


@pytest.mark.parametrize("through", ["fit()", "to_sagemaker()"])
def test_a_session_of_the_sdks_local_mode_runs_the_job_as_the_sdk_does(
    home: Path, image: str, capfd: pytest.CaptureFixture[str], through: str
) -> None:
    session = LocalSession(boto3.Session(region_name="us-east-1"))
    session.config = {"local": {"local_code": True, "container_root": str(home)}}
    estimator = Estimator(
        write(BOTH_HOSTS, home),
        instance_type="local",
        instance_count=2,
        image_uri=image,
        distribution="torchrun",
        output_path=f"file://{home}/out",
        sagemaker_session=session,
    )
    if through == "fit()":
        job = estimator.fit()
        assert (job.status, job.model_data) == ("Completed", f"file://{home}/out/model.tar.gz")
    else:
        estimator.to_sagemaker().fit()
    assert (home / "out" / "model.tar.gz").exists()
    shown = capfd.readouterr().out
    assert all(f"rank {rank} of 2 on 2 hosts" in shown for rank in range(2)), shown
    left = docker("ps", "--all", "--quiet", "--filter", f"ancestor={image}", "--filter", "status=exited")
    docker("rm", *left.split())  # which the SDK leaves
