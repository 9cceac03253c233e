"""Whole jobs in the SDK's own Local Mode, on containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from estimators import Estimator
from estimators.docker.docker_program import docker
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.local_mode.containers import JOB_LABEL
from tests.docker.cells import FIT_AGAIN
from tests.docker.images import build_images
from tests.docker.jobs import EPOCHS, LAST_STEP, SCRIPTS, write_digits
from tests.docker.proof import Proof
from tests.torture.s3_server import Server, s3_server

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
    """A name for the image that only this test uses. Afterwards no container or network of its jobs is left, and
    nothing in the temporary directory."""
    name = f"smddp-local-mode-test:{uuid4().hex[:8]}"
    began = time.time()
    docker("tag", built_image, name)
    yield name
    try:
        jobs = jobs_of(name, since=began)
        assert jobs, "no container ran"
        left = [line for job in jobs for line in docker("ps", "-aq", "--filter", f"label={JOB_LABEL}={job}").split()]
        left += [line for job in jobs for line in docker("network", "ls", "-q", "--filter", f"name={job}").split()]
        assert not left
        assert list((home / "tmp").iterdir()) == []
    finally:
        docker("rmi", "--no-prune", name)


def jobs_of(image: str, *, since: float) -> set[str]:
    """The labels of the jobs whose containers were made from an image."""
    events = docker(
        *("events", "--since", f"{since:.0f}", "--until", f"{time.time() + 1:.0f}", "--filter", "type=container"),
        *("--filter", "event=create", "--format", "{{json .Actor.Attributes}}"),
    )
    made = [json.loads(line) for line in events.splitlines()]
    return {attributes[JOB_LABEL] for attributes in made if attributes["image"] == image and JOB_LABEL in attributes}


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
    resumed = f"resumed at step {LAST_STEP}, in epoch {EPOCHS}"
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
        "if host.startswith('algo-2'):\n"
        "    raise ValueError('enough')\n"
        "time.sleep(100)\n",
        home,
    )
    job = Estimator(script, instance_type="local", instance_count=2, image_uri=image)
    began = time.monotonic()
    with pytest.raises(TrainingJobFailed, match=r"failed on algo-2: AlgorithmError: .*ValueError: enough") as failed:
        job.fit(job_name="fails")
    assert time.monotonic() - began < 60
    assert (failed.value.job_name, failed.value.status) == ("fails", "Failed")
    assert "algo-2 | this is algo-2-" in capfd.readouterr().out
    assert not [record.getMessage() for record in caplog.records if record.name.partition(".")[0] == "sagemaker"]


def test_a_host_that_is_done_leaves_the_others_their_time(home: Path, image: str) -> None:
    script = write(
        "import os, pathlib, time\n"
        "host = os.environ['SM_CURRENT_HOST'][:6]\n"
        "time.sleep(4 if host == 'algo-2' else 0)\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], host).write_text('done')\n",
        home,
    )
    job = Estimator(
        script, instance_type="local", instance_count=2, image_uri=image, output_path=f"file://{home}/out"
    ).fit(logs=False)
    assert job.status == "Completed"
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        assert sorted(archive.getnames()) == ["algo-1", "algo-2"]
    with pytest.raises(EstimatorError, match="Local Mode keeps none"):
        job.logs()


TRAINS_UNTIL_TOLD = """
import os, pathlib, signal, sys
def save(*_):
    pathlib.Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"][:6]).write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
signal.pause()
"""


@pytest.fixture
def training(home: Path, image: str) -> Iterator[subprocess.Popen[str]]:
    """A job of two hosts in the middle of its training, sent by a process of its own."""
    job = {
        "entry_point": write(TRAINS_UNTIL_TOLD, home),
        "instance_type": "local",
        "instance_count": 2,
        "image_uri": image,
        "checkpoint_s3_uri": f"file://{home}/checkpoints",
    }
    with subprocess.Popen(
        submission(job), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
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
    assert f"the next fit() goes on from what checkpoints there are in file://{home}/checkpoints" in said
    assert said.count("Traceback") == 1
    assert sorted(path.name for path in (home / "checkpoints").iterdir()) == ["algo-1", "algo-2"]


def test_a_host_killed_from_outside_is_the_one_that_is_named(training: subprocess.Popen[str], image: str) -> None:
    listed = docker("ps", "--format", "{{.ID}} {{.Image}} {{.Names}}").splitlines()
    (second,) = [line.split()[0] for line in listed if f" {image} " in line and "algo-2" in line]
    docker("kill", second)
    assert training.stdout is not None
    said = training.stdout.read()
    assert "failed on algo-2: InternalServerError: algo-2 was lost" in said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_fit_leaves_no_containers(home: Path, training: subprocess.Popen[str], number: signal.Signals) -> None:
    os.killpg(training.pid, number)  # as a terminal does that is closed
    deadline = time.monotonic() + 60
    while list((home / "tmp").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert sorted(path.name for path in (home / "checkpoints").iterdir()) == ["algo-1", "algo-2"]


@pytest.fixture
def reachable_s3(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An S3 server of this machine, which the environment names as containers see it: on the bridge, by a relay."""
    gateway = json.loads(docker("network", "inspect", "bridge"))[0]["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
    with s3_server(tmp_path_factory.mktemp("s3")) as server, socket.create_server((gateway, 0)) as relay:
        target = int(server.endpoint_url.rpartition(":")[2])
        threading.Thread(target=_relay, args=(relay, target), daemon=True).start()
        for name, value in server.environ(f"http://{gateway}:{relay.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        yield server


def _relay(listener: socket.socket, target: int) -> None:
    while True:
        try:
            client, _address = listener.accept()
        except OSError:
            return
        upstream = socket.create_connection(("127.0.0.1", target))
        for source, sink in ((client, upstream), (upstream, client)):
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


@pytest.mark.seaweedfs
def test_checkpoints_go_to_s3(home: Path, image: str, reachable_s3: Server) -> None:
    reachable_s3.client().create_bucket(Bucket="checkpoints")
    script = write(
        "import smddp, torch\n"
        "def main(job: smddp.Job) -> None:\n"
        "    model = torch.nn.Linear(1, 1)\n"
        "    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    data = torch.utils.data.TensorDataset(torch.ones(8, 1))\n"
        "    loader = trainer.loader(data, batch_size=4)\n"
        "    for _ in trainer.epochs(1):\n"
        "        for (x,) in trainer.batches(loader):\n"
        "            trainer.step(trainer.model(x).mean())\n"
        "smddp.run(main)\n",
        home,
    )
    place = "s3://checkpoints/run"
    one = {"OMP_NUM_THREADS": "1"}
    job = Estimator(script, instance_type="local", image_uri=image, checkpoint_s3_uri=place, environment=one).fit()
    assert job.checkpoint_s3_uri == place
    keys = [entry["Key"] for entry in reachable_s3.client().list_objects_v2(Bucket="checkpoints")["Contents"]]
    assert any(key.startswith("run/step-000000000002/") for key in keys), keys


@pytest.mark.seaweedfs
@pytest.mark.usefixtures("reachable_s3")
def test_what_the_sdk_can_not_fetch_or_deliver_is_told_in_a_line_and_a_model_is_kept(home: Path, image: str) -> None:
    script = write(
        "import os, pathlib\n"
        "pathlib.Path('/opt/ml/model/price').write_text(os.environ['PRICE'])\n"
        "pathlib.Path('/opt/ml/checkpoints/here').touch()\n",
        home,
    )
    job = Estimator(
        script,
        instance_type="local",
        image_uri=image,
        output_path="s3://absent/models",
        environment={"PRICE": "5$HOME$$"},
        checkpoint_s3_uri=f"file://{home}/at 12:30 for $5",
    )
    with pytest.raises(EstimatorError, match=r"kept completed, but .*NoSuchBucket.* stays in /.*"):
        job.fit(job_name="kept")
    (directory,) = (home / "tmp").iterdir()
    (model,) = directory.glob("containers/*/compressed_artifacts/model.tar.gz")
    with tarfile.open(model) as archive:
        price = archive.extractfile("price")
        assert price is not None
        assert price.read() == b"5$HOME$$"
    assert (home / "at 12:30 for $5" / "here").exists()
    assert not (home / "at 12").exists()
    shutil.rmtree(directory)
    with pytest.raises(EstimatorError, match=r"absent did not start. The SDK's Local Mode says: \w+: .*") as refused:
        job.fit({"training": "s3://absent/data"}, job_name="absent")
    assert "\n" not in str(refused.value)
