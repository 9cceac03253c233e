"""Stops and deaths in containers: the first process is told as the platform does it, and nothing is lost.

A job that goes on comes to the same loss, to the last bit, as those that nothing happened to.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence

import pytest

from estimators.docker.docker_program import docker
from estimators.errors import TrainingJobFailed
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob
from smddp.checkpoint import list_checkpoints
from tests.docker import jobs
from tests.docker.cells import HOST_KILLED, INTERRUPTED, RANK_KILLED, Cell
from tests.docker.jobs import EPOCHS, LAST_STEP, log_of
from tests.docker.proof import Proof

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

SPOT = {"use_spot_instances": True, "max_wait": 550}


def start(platform: LocalSageMaker, cell: Cell, **parameters: object) -> TrainingJob:
    return jobs.start(platform, cell, hyperparameters={"epochs": EPOCHS, "pause": 0.1}, **parameters)


def await_line(job: TrainingJob, text: str) -> None:
    for _host, line in job.logs():
        if text in line:
            return
    raise AssertionError(f"{job.name} ended without {text!r}:\n{log_of(job)}")


def containers(job: TrainingJob, host: str = "") -> list[str]:
    return docker("ps", "-q", "--filter", f"label=smddp.job={job.name}", "--filter", f"name={host}$").split()


def exit_codes(hosts: Sequence[str], since: float) -> list[str]:
    """How containers ended after a time, in seconds since 1970. Docker has noted it of removed containers, too."""
    times = (f"--since={since:.3f}", f"--until={time.time() + 150:.3f}")
    filters = ("--filter=event=die", *(f"--filter=container={each}" for each in hosts))
    command = ["docker", "events", *times, *filters, "--format={{.Actor.Attributes.exitCode}}"]
    events = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert events.stdout is not None
    try:
        return [events.stdout.readline().strip() for _ in hosts]
    finally:
        events.kill()
        events.communicate()


def agreed_step(log: str, place: str) -> int:
    """The step that the ranks stopped at, all at the same: its checkpoint is what one of them says is in S3."""
    stops = re.findall(rf"stopped at step (\d+), in epoch \d+: the checkpoint is {place}/step-(\d{{12}})", log)
    ((step, saved),) = {(int(step), int(saved)) for step, saved in stops}
    assert 20 <= step == saved < LAST_STEP, log
    return step


def check_that_it_went_on(job: TrainingJob, *, from_step: int) -> None:
    log = log_of(job)
    resumed = re.search(r"resumed at step (\d+), ", log)
    assert resumed is not None, log
    assert int(resumed[1]) >= from_step
    assert job.describe()["TrainingJobStatus"] == "Completed"


def newest_checkpoint(job: TrainingJob, platform: LocalSageMaker) -> tuple[int, str]:
    """The step of what the job's place on S3 holds last, and whether it is whole."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in platform.environment.items():
            patch.setenv(name, value)
        found = list_checkpoints(job.checkpoint_s3_uri)[-1]
    return found.step, found.status


@pytest.mark.parametrize("cell", INTERRUPTED, ids=str)
def test_an_interruption_reaches_all_ranks_and_the_job_goes_on_from_the_agreed_step(
    cell: Cell, platform: LocalSageMaker, proof: Proof
) -> None:
    job = start(platform, cell, **SPOT)
    await_line(job, "step=20 ")
    hosts = containers(job)
    assert len(hosts) == 2
    began = time.time()
    platform.interrupt(job.name)
    assert exit_codes(hosts, began) == ["75", "75"], log_of(job)
    job.wait(logs=False)

    log = log_of(job)
    assert f"resumed at step {agreed_step(log, job.checkpoint_s3_uri)}, " in log
    assert newest_checkpoint(job, platform) == (LAST_STEP, "valid")
    proof.check(cell, log)


def test_docker_stop_on_both_hosts_is_one_agreed_step_a_checkpoint_in_s3_and_exit_code_75(
    platform: LocalSageMaker,
) -> None:
    entry_point = ["python", "-m", "smddp.container.init", "train"]  # for images whose own first process it is not
    cell = Cell(distribution="torch_distributed", toolkit="AWS's", place="Docker executor")
    job = start(platform, cell, container_entry_point=entry_point)
    await_line(job, "step=20 ")
    hosts = containers(job)
    assert len(hosts) == 2
    began = time.time()
    subprocess.run(["docker", "stop", "--time", "120", *hosts], check=True, timeout=150, stdout=subprocess.DEVNULL)
    assert exit_codes(hosts, began) == ["75", "75"], log_of(job)
    with pytest.raises(TrainingJobFailed, match="75"):  # nobody asked the platform for a stop
        job.wait(logs=False)

    log = log_of(job)
    assert "exit code 75" in log
    assert newest_checkpoint(job, platform) == (agreed_step(log, job.checkpoint_s3_uri), "valid")


def test_a_spot_job_goes_on_from_its_newest_checkpoint_when_a_host_is_killed(
    platform: LocalSageMaker, proof: Proof
) -> None:
    job = start(platform, HOST_KILLED, **SPOT)
    await_line(job, "saved /opt/ml/checkpoints/step-000000000012")
    (host,) = containers(job, "algo-2")
    docker("kill", host)
    killed = time.monotonic()
    await_line(job, "algo-2 was lost")
    assert time.monotonic() - killed < 30
    job.wait(logs=False)
    check_that_it_went_on(job, from_step=12)
    proof.check(HOST_KILLED, log_of(job))


def test_a_killed_rank_restarts_all_ranks_in_the_same_job(platform: LocalSageMaker, proof: Proof) -> None:
    job = start(platform, RANK_KILLED, environment={"SMDDP_MAX_RESTARTS": "1"})
    await_line(job, "saved /opt/ml/checkpoints/step-000000000012")
    (host,) = containers(job, "algo-2")
    docker("exec", host, "pkill", "-KILL", "--newest", "-f", "digits.py")
    job.wait(logs=False)
    check_that_it_went_on(job, from_step=12)
    proof.check(RANK_KILLED, log_of(job))
