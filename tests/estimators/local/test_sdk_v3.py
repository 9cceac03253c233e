"""What the SDK V3's ModelTrainer sends trains here: bash is the first process, and V3's own drivers start the script.

V2 and V3 are both called ``sagemaker``, so only the process that submits has V3, from a directory of its own.
"""

import os
import subprocess
import sys

import pytest

from estimators.local import Docker, LocalSageMaker
from tests.docker.images import build_images
from tests.estimators.local.submitted_jobs import await_end, await_that, messages
from tests.sdk_v3 import SDK_V3

pytestmark = [
    pytest.mark.sdk_v3,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def platform():
    """One whose jobs start the real Python: the first process looks for ranks in the tree of processes below it."""
    with LocalSageMaker(grace_seconds=10) as platform:
        yield platform


TRAIN = """
import time
from dataclasses import dataclass, field

import torch

import smddp


WAIT_AT = 5  # the step at which a longer job waits until it is interrupted


@dataclass
class Config:
    samples: int
    lr: float = 0.1
    optimizer: str = "sgd"
    tag: str = ""
    nesterov: bool = False
    milestones: list[int] = field(default_factory=list)


def main(config: Config, job: smddp.Job) -> None:
    here = job.cluster
    print(f"rank {here.rank} of {here.world_size} on {here.host}, {sorted(job.channels)}: {config}", flush=True)
    model = torch.nn.Linear(3, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=config.lr), log_every=1)
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(config.samples, 3)), batch_size=4)
    for _ in trainer.epochs(1):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
            while trainer.steps == WAIT_AT and not job.stopping:
                time.sleep(0.02)


smddp.run(main)
"""

TWO_HOSTS = """
import logging
import sys

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import CheckpointConfig, Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI, Torchrun

logging.basicConfig(level=logging.INFO)
role, bucket, kind = sys.argv[1:]
trainer = ModelTrainer(
    training_image="an-image",
    role=role,
    base_job_name=kind,
    source_code=SourceCode(source_dir="source", entry_script="train.py"),
    distributed={
        "torchrun": Torchrun(process_count_per_node=1),
        "mpi": MPI(process_count_per_node=2, mpi_additional_options=["-np", "4"]),
    }[kind],
    compute=Compute(instance_type="ml.m5.large", instance_count=2),
    hyperparameters={
        "samples": 8,
        "lr": 0.01,
        "optimizer": "adam",
        "tag": "007",
        "nesterov": True,
        "milestones": [1, 2],
    },
    environment={"OMP_NUM_THREADS": "1"},
    checkpoint_config=CheckpointConfig(s3_uri=f"s3://{bucket}/{kind}"),
)
trainer.train(input_data_config=[InputData(channel_name="training", data_source="data")])
"""

SPOT = """
import sys

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import CheckpointConfig, Compute, SourceCode, StoppingCondition

role, bucket = sys.argv[1:]
trainer = ModelTrainer(
    training_image="an-image",
    role=role,
    base_job_name="spot",
    source_code=SourceCode(source_dir="source", entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.large", enable_managed_spot_training=True),
    stopping_condition=StoppingCondition(max_runtime_in_seconds=100, max_wait_time_in_seconds=200),
    hyperparameters={"samples": 400},
    environment={"BASH_ENV": "/opt/ml/input/data/code/first_process.sh"},
    checkpoint_config=CheckpointConfig(s3_uri=f"s3://{bucket}/spot"),
)
trainer.train(wait=False, logs=False)
"""

FIRST_PROCESS = """
cd "${BASH_ENV%/*}" && unset BASH_ENV
exec python3 -m smddp.container.init /bin/bash -c "$BASH_EXECUTION_STRING"
"""


@pytest.fixture
def submit(tmp_path):
    """A function that runs a submit script in a process that has V3: the job's name, and what V3 showed of it."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(TRAIN)
    (tmp_path / "source" / "first_process.sh").write_text(FIRST_PROCESS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.txt").write_text("1 2 3")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(platform: LocalSageMaker, script: str, *arguments: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", script, platform.role, platform.default_bucket, *arguments],
            cwd=tmp_path,
            env={**clean, **platform.environment, "PYTHONPATH": str(SDK_V3)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        newest = platform.boto_session.client("sagemaker").list_training_jobs(
            SortBy="CreationTime", SortOrder="Descending", MaxResults=1
        )
        return newest["TrainingJobSummaries"][0]["TrainingJobName"], done.stderr

    return run


@pytest.mark.namespaces
@pytest.mark.usefixtures("port_7777")
def test_torchrun_on_two_hosts(platform, submit):
    check_that_it_trains(platform, submit, "torchrun", hosts=["algo-1", "algo-2"])


@pytest.mark.docker
@pytest.mark.parametrize(("kind", "image", "ranks"), [("mpi", "toolkit", 2), ("torchrun", "smddp", 1)])
def test_two_containers(submit, kind: str, image: str, ranks: int):
    """V3's driver of MPI takes a host for itself: it starts an sshd, and writes /etc/environment."""
    with LocalSageMaker(executor=Docker(images={"an-image": getattr(build_images(), image)})) as platform:
        check_that_it_trains(platform, submit, kind, hosts=["algo-1"] * ranks + ["algo-2"] * ranks)


def check_that_it_trains(platform, submit, kind: str, hosts: list[str]) -> None:
    name, shown = submit(platform, TWO_HOSTS, kind)
    config = "Config(samples=8, lr=0.01, optimizer='adam', tag='007', nesterov=True, milestones=[1, 2])"
    for rank, host in enumerate(hosts):
        assert f"rank {rank} of {len(hosts)} on {host}, ['training']: {config}" in shown
    job = platform.boto_session.client("sagemaker").describe_training_job(TrainingJobName=name)
    assert job["TrainingJobStatus"] == "Completed"
    saved = platform.boto_session.client("s3").list_objects_v2(Bucket=platform.default_bucket, Prefix=f"{kind}/step-")
    assert f"{kind}/step-000000000002/manifest.json" in [entry["Key"] for entry in saved["Contents"]]


@pytest.mark.namespaces
def test_an_interrupted_spot_job_saves_and_goes_on(platform, submit):
    """As the first process bash would take no SIGTERM; what BASH_ENV names gives its place to one that passes it on."""
    name, _ = submit(platform, SPOT)
    await_that(lambda: any("step=5 " in line for line in messages(platform, name)), lambda: messages(platform, name))
    platform.interrupt(name)
    job = await_end(platform, name, seconds=500)
    told = messages(platform, name)
    assert job["TrainingJobStatus"] == "Completed", "\n".join([job.get("FailureReason", ""), *told])
    said = {text: sum(text in line for line in told) for text in ("rank 0 of 1 on", "stopped at step", " loss=")}
    assert said == {"rank 0 of 1 on": 2, "stopped at step": 1, " loss=": 100}, "\n".join(told)
