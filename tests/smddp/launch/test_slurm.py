"""A real Slurm of two nodes: srun gives ``smddp run`` its nodes, and what ends a job is a stop that can be resumed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.export.batch_script import batch_script
from estimators.export.portable_job import PortableJob
from smddp.checkpoint import list_checkpoints
from tests.slurm import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("fork_python")]

TRAIN = """
import time
import torch
import smddp

def main(job):
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in trainer.steps_to({steps}):
        if job.cluster.is_main:
            print(f"step {{step + 1}} of {{job.cluster.world_size}} ranks", flush=True)
        time.sleep({seconds})
        trainer.step(trainer.model(torch.ones(1, 1)).sum())

smddp.run(main)
"""


_REVOKED_SECONDS = 2.0
"""For as long a node refuses the credentials of a job that it has just ended: it has no finer clock."""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script that trains so many steps."""

    def write(*, steps: int, seconds: float = 0.0) -> Path:
        path = tmp_path / "train.py"
        path.write_text(TRAIN.format(steps=steps, seconds=seconds))
        return path

    return write


class Batch:
    """A batch job of two nodes, one rank on each."""

    def __init__(self, slurm: SlurmCluster, directory: Path, script: Path) -> None:
        self._slurm = slurm
        self.run = directory / "run"
        self._log = directory / "log"
        job = PortableJob(
            name="train",
            script=script,
            arguments=(),
            hosts=2,
            processes_per_host=1,
            instance_type="",
            environment={},
            checkpoint_s3_uri=None,
            max_run=600,
        )
        batch = directory / "train.sbatch"
        batch.write_text(batch_script(job, options=["--exclusive"], run_dir=str(self.run), what="A test."))
        self.job = slurm.run("sbatch", "--parsable", f"--output={self._log}", str(batch)).strip()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def await_log(self, text: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log()}"
            time.sleep(0.1)

    def await_resumption(self) -> None:
        """Wait until it is queued again, and let it begin soon; Slurm gives it two minutes."""
        self._slurm.await_state(self.job, "PENDING")
        time.sleep(_REVOKED_SECONDS)
        self._slurm.run("scontrol", "update", f"JobId={self.job}", "StartTime=now")

    def saved(self) -> list[int]:
        return [found.step for found in list_checkpoints(self.run / "checkpoints")]


@pytest.fixture
def submit(slurm: SlurmCluster, tmp_path: Path) -> Callable[[Path], Batch]:
    return lambda script: Batch(slurm, tmp_path, script)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["where.py"], ["-m", "where"]])
def test_each_task_of_srun_is_a_node(slurm: SlurmCluster, tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "where.py"
    script.write_text(
        "import os, sys\nimport smddp\nc = smddp.Cluster.detect()\n"
        "sys.stdout.write(f'{c.rank} of {c.world_size} on node {c.node_rank} at {c.master_addr}, {c.launcher}\\n')"
    )
    srun = [str(slurm.programs / "srun"), "--nodes=2", "--ntasks-per-node=1"]
    command = [*srun, sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    lines = [f"{rank} of 4 on node {rank // 2} at n1, torchrun" for rank in range(4)]
    assert sorted(ended.stdout.splitlines()) == lines, ended.stderr


@pytest.mark.slow
def test_a_warning_before_the_time_is_up_stops_and_requeues(
    slurm: SlurmCluster, submit: Callable[[Path], Batch], train: Callable[..., Path]
) -> None:
    batch = submit(train(steps=40, seconds=0.1))
    batch.await_log("step 3 of 2 ranks")
    slurm.run("scancel", "--signal=TERM", batch.job)  # as sbatch --signal=TERM@120 does
    batch.await_resumption()
    stopped_at = batch.saved()[-1]
    (left,) = re.findall(r"Slurm ends this job in (\d+) s", batch.log())  # its time limit is ten minutes
    assert 400 < int(left) < 600
    batch.await_log("step 40 of 2 ranks")
    steps = [line for line in batch.log().splitlines() if line.startswith("step ")]
    assert steps == [f"step {step} of 2 ranks" for step in range(1, 41)]
    assert 3 <= stopped_at < 40
    assert slurm.await_state(batch.job, "COMPLETED", "FAILED") == "COMPLETED"


@pytest.mark.slow
def test_a_preempted_job_saves_and_goes_on(
    slurm: SlurmCluster, submit: Callable[[Path], Batch], train: Callable[..., Path]
) -> None:
    batch = submit(train(steps=40, seconds=0.1))
    batch.await_log("step 3 of 2 ranks")
    slurm.preempt()
    batch.await_resumption()
    batch.await_log("step 40 of 2 ranks")
    steps = [line for line in batch.log().splitlines() if line.startswith("step ")]
    assert steps == [f"step {step} of 2 ranks" for step in range(1, 41)]


@pytest.mark.slow
def test_scancel_saves_and_the_job_stays_cancelled(
    slurm: SlurmCluster, submit: Callable[[Path], Batch], train: Callable[..., Path]
) -> None:
    batch = submit(train(steps=1000, seconds=0.1))
    batch.await_log("step 3 of 2 ranks")
    slurm.run("scancel", batch.job)
    slurm.await_end(batch.job)
    assert slurm.state(batch.job) == "CANCELLED"
    (left,) = re.findall(r"Slurm ends this job in (\d+) s", batch.log())  # the cluster's KillWait is 30 s
    assert 15 <= int(left) <= 30
    shown = [line for line in batch.log().splitlines() if line.startswith("step ")]
    assert batch.saved()[-1] == len(shown)
