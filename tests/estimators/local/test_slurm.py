"""Whole jobs on a real Slurm, through the API: each host is a task of an allocation, which ends with the job."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker, Slurm
from tests.estimators.local import submitted_jobs
from tests.estimators.local.submitted_jobs import await_end, await_that, describe, messages
from tests.fork_python import ForkPython
from tests.slurm import SlurmCluster

pytestmark = pytest.mark.slurm

IMAGE = "account.dkr.ecr.us-east-1.amazonaws.com/training:1"
submit = functools.partial(submitted_jobs.submit, image=IMAGE, hosts=2)
WAITS = 'trap "exit 75" TERM; echo up; while :; do sleep 0.1; done'

TRAIN = """
from dataclasses import dataclass
from pathlib import Path
import time
import torch
import smddp

@dataclass
class Config:
    steps: int

def main(config: Config, job: smddp.Job):
    c = job.cluster
    print(f"rank {c.rank} of {c.world_size} on {c.host}: {(job.channels['training'] / 'data').read_text()}", flush=True)
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in trainer.steps_to(config.steps):
        if c.is_main:
            print(f"step {step}", flush=True)
        while step == 3 and not job.stopping:  # until the preemption
            time.sleep(0.02)
        trainer.step(trainer.model(torch.ones(1, 1)).sum())
    trainer.save_model()

smddp.run(main)
"""


@pytest.fixture(scope="module")
def platform(
    slurm: SlurmCluster, fork_server: ForkPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalSageMaker]:
    """A platform whose jobs run on the cluster; their files are left by none."""
    shared = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch, fork_server.in_use():
        patch.setenv("PATH", slurm.environment["PATH"])
        executor = Slurm(shared=shared, partition="low", options=["--exclusive"])
        with LocalSageMaker(grace_seconds=20, executor=executor) as platform:
            yield platform
    assert not list(shared.iterdir())


def logged(platform: LocalSageMaker, job: str) -> str:
    return "\n".join(messages(platform, job))


def allocations(slurm: SlurmCluster) -> str:
    """What Slurm has allocated, or will; a node that it still tidies up after one that was given back is none."""
    return slurm.run("squeue", "--noheader", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED").strip()


def slurm_job(slurm: SlurmCluster, job: str) -> str:
    """The number of the allocation of a training job."""
    return str(await_that(lambda: slurm.run("squeue", "--noheader", f"--name=smddp-{job}", "--format=%i").strip()))


def await_log(platform: LocalSageMaker, job: str, line: str) -> None:
    await_that(lambda: line in logged(platform, job), lambda: f"{describe(platform, job)}\n{logged(platform, job)}")


@pytest.mark.slow
def test_the_same_estimator_trains_on_the_cluster_and_goes_on_after_a_preemption(
    platform: LocalSageMaker, slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    s3 = platform.boto_session.client("s3")
    s3.put_object(Bucket=platform.default_bucket, Key="data/data", Body=b"here")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    job = Estimator(
        str(tmp_path / "train.py"),
        role=platform.role,
        instance_type="ml.m5.large",
        instance_count=2,
        image_uri=IMAGE,
        distribution="torchrun",
        hyperparameters={"steps": 25},
        use_spot_instances=True,
        max_run=300,
        max_wait=600,
        checkpoint_s3_uri=f"s3://{platform.default_bucket}/checkpoints",
        sagemaker_session=platform.session,
    ).fit({"training": f"s3://{platform.default_bucket}/data"}, wait=False)
    await_log(platform, job.name, "step 3")
    assert slurm.run("squeue", "--noheader", f"--name=smddp-{job.name}", "--format=%D %P").split() == ["2", "low"]
    slurm.preempt()
    ended = await_end(platform, job.name)
    log = logged(platform, job.name)
    assert ended["TrainingJobStatus"] == "Completed", log
    statuses = [each["Status"] for each in ended["SecondaryStatusTransitions"]]
    assert "Interrupted" in statuses
    steps = [line for line in log.splitlines() if line.startswith("step ")]
    assert steps == [f"step {step}" for step in range(25)]
    for rank in range(2):
        assert f"rank {rank} of 2 on algo-{rank + 1}: here" in log
    assert ended["ModelArtifacts"]["S3ModelArtifacts"].endswith("model.tar.gz")
    assert not allocations(slurm)


@pytest.mark.slow
def test_a_job_that_is_cancelled_at_slurm_was_lost_and_says_so(platform: LocalSageMaker, slurm: SlurmCluster) -> None:
    job = submit(platform, WAITS)
    await_log(platform, job, "up")
    number = slurm_job(slurm, job)
    slurm.run("scancel", number)
    ended = await_end(platform, job)
    assert ended["TrainingJobStatus"] == "Failed"
    assert f"was lost: Slurm has ended job {number}, which is CANCELLED" in ended["FailureReason"]


@pytest.mark.slow
def test_a_stop_reaches_the_programs_and_gives_the_nodes_back(platform: LocalSageMaker, slurm: SlurmCluster) -> None:
    job = submit(platform, WAITS)
    await_log(platform, job, "up")
    number = slurm_job(slurm, job)
    platform.boto_session.client("sagemaker").stop_training_job(TrainingJobName=job)
    assert await_end(platform, job)["TrainingJobStatus"] == "Stopped"
    slurm.await_end(number)


def test_nodes_are_given_back_also_when_what_held_them_was_killed(
    platform: LocalSageMaker, slurm: SlurmCluster
) -> None:
    job = submit(platform, WAITS)
    await_log(platform, job, "up")
    number = slurm_job(slurm, job)
    found = subprocess.run(["pgrep", "--full", f"^[^ ]*salloc .*--job-name=smddp-{job}"], stdout=subprocess.PIPE)
    os.kill(int(found.stdout), signal.SIGKILL)
    assert describe(platform, job)["TrainingJobStatus"] == "InProgress"
    platform.boto_session.client("sagemaker").stop_training_job(TrainingJobName=job)
    assert await_end(platform, job)["TrainingJobStatus"] == "Stopped"
    slurm.await_end(number)


@pytest.mark.slow
def test_a_job_that_waits_for_nodes_says_so_and_can_be_stopped(platform: LocalSageMaker, slurm: SlurmCluster) -> None:
    running = submit(platform, WAITS)
    await_log(platform, running, "up")
    waiting = submit(platform, "echo never")
    number = slurm_job(slurm, waiting)
    assert slurm.state(number) == "PENDING"
    assert describe(platform, waiting)["SecondaryStatus"] == "Starting"
    client = platform.boto_session.client("sagemaker")
    client.stop_training_job(TrainingJobName=waiting)
    assert await_end(platform, waiting)["TrainingJobStatus"] == "Stopped"
    slurm.await_end(number)
    client.stop_training_job(TrainingJobName=running)
    assert await_end(platform, running)["TrainingJobStatus"] == "Stopped"


@pytest.mark.parametrize(
    ("script", "changes", "reason"),
    [
        ("exit 3", {}, "exit code: 3"),
        (
            "true",
            {"AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File",
                                        "ContainerEntrypoint": ["no-such-program"]}},
            "ClientError: algo-",
        ),
        ("true", {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 3, "VolumeSizeInGB": 1}},
         "Slurm did not allocate 3 nodes: salloc: error: "),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_the_jobs_failure_reason(
    platform: LocalSageMaker, slurm: SlurmCluster, script: str, changes: dict[str, Any], reason: str
) -> None:
    ended = await_end(platform, submit(platform, script, **changes))
    assert ended["TrainingJobStatus"] == "Failed"
    assert reason in ended["FailureReason"]
    assert not allocations(slurm)


@pytest.mark.slow
def test_nodes_that_bar_namespaces_run_programs_in_the_directory_itself(slurm: SlurmCluster, tmp_path: Path) -> None:
    one = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", slurm.environment["PATH"])
        with LocalSageMaker(executor=Slurm(shared=tmp_path, isolated=False)) as platform:
            job = submit(platform, 'cd "$SAGEMAKER_BASE_DIR/code" && pwd && test ! -e /opt/ml', ResourceConfig=one)
            assert await_end(platform, job)["TrainingJobStatus"] == "Completed"
            assert f"\n{tmp_path}/smddp-local-" in logged(platform, job)


HELD = """
import sys, time
from estimators.local import LocalSageMaker, Slurm
sys.path.insert(0, sys.argv[2])
from tests.estimators.local.test_slurm import WAITS, await_log, submit
platform = LocalSageMaker(executor=Slurm(shared=sys.argv[1], options=["--exclusive"])).start()
job = submit(platform, WAITS)
await_log(platform, job, "up")
print("up", platform.server_pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_is_left_on_the_cluster_by_a_platform_that_is_killed(slurm: SlurmCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path), str(Path(__file__).parents[3])]
    with subprocess.Popen(command, env=slurm.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        up, server = process.stdout.readline().split()
        assert up == "up"
        process.kill()
        os.kill(int(server), signal.SIGKILL)
    await_that(lambda: not allocations(slurm))
    await_that(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shared": "nfs"}, "shared='nfs': give the absolute path of a directory that all nodes share"),
        ({"shared": "/no/such"}, "shared='/no/such'"),
        ({"shared": "/", "options": ["-p gpu"]}, "'-p gpu' is no option for salloc: write '--name=value'"),
    ],
)
def test_settings_that_are_none_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slurm(**given)
