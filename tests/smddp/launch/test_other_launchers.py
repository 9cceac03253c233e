"""``smddp.run`` under torchrun, mpirun and srun by hand: no launcher of smddp's sees how a rank ends; the ranks do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fork_python")]

SCRIPT = """
import os, signal, time
import torch
import torch.distributed as dist
import smddp
from smddp.distributed import first_failure
from smddp.watch import position

FAULT, CULPRIT = os.environ["FAULT"], int(os.environ["CULPRIT"])
first_failure._HEED_SECONDS = 0.5
position._NETWORK_PHASES = frozenset()  # other tests use this host's network

meet = first_failure._Neighbours.meet

def meet_and_tell(self, store):
    meet(self, store)
    if self._processes:
        open(f"met-{self._rank}", "w").close()

first_failure._Neighbours.meet = meet_and_tell

def main(job):
    culprit = job.cluster.rank == CULPRIT
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        if step == 7 and culprit and FAULT == "unequal steps":
            break
        if step == 7 and culprit and FAULT == "hang":
            time.sleep(600)  # the fault
        if step == 7 and culprit and FAULT == "kill":
            while not all(os.path.exists(f"met-{each}") for each in range(job.cluster.world_size)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

smddp.run(main, watch=smddp.Watch(after=60 if FAULT == "kill" else 2, patience=0))
"""

Command = Callable[[int], list[str]]


@pytest.fixture(
    params=[
        "torchrun",
        pytest.param("mpirun", marks=pytest.mark.mpi),
        pytest.param("srun", marks=pytest.mark.slurm),
    ]
)
def command(request: pytest.FixtureRequest) -> Command:
    """The command line that starts a Python in so many ranks."""
    name = request.param
    if name == "srun":
        srun = str(request.getfixturevalue("slurm").programs / "srun")
        return lambda ranks: [srun, "--nodes=1", f"--ntasks={ranks}", "--overcommit", sys.executable]
    if name == "mpirun":
        # On a busy machine one second, mpirun's default, may be too short to write a reason.
        options = ["--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", "5"]
        return lambda ranks: ["mpirun", *options, "-np", str(ranks), sys.executable]
    return lambda ranks: [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]


def failure_of(command: Command, directory: Path, fault: str, *, culprit: int, ranks: int = 2) -> tuple[str, str]:
    """Return the failure and the log of a job of so many ranks."""
    (directory / "train.py").write_text(SCRIPT)
    environ = {"FAULT": fault, "CULPRIT": str(culprit), "SMDDP_RUN_DIR": str(directory), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [*command(ranks), str(directory / "train.py")],
        env={**os.environ, **environ},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log, _ = job.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        pytest.fail(f"the job has not ended:\n{job.communicate(timeout=10)[0]}")
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    assert job.returncode != 0, log
    return (directory / "output" / "failure").read_text(), log


@pytest.mark.parametrize(("culprit", "ranks"), [(1, 2), (0, 2), (2, 4)])
def test_a_rank_that_is_killed_is_named(command: Command, tmp_path: Path, culprit: int, ranks: int) -> None:
    failure, log = failure_of(command, tmp_path, "kill", culprit=culprit, ranks=ranks)
    assert re.match(
        rf"Rank {culprit} of {ranks} on \S+ ended without a word, and the kernel has counted no OOM kill\. ", failure
    ), log


def test_a_rank_that_hangs_is_named_with_its_line(command: Command, tmp_path: Path) -> None:
    failure, log = failure_of(command, tmp_path, "hang", culprit=1)
    assert re.match(r"Hang \(blocking call\): rank 1 on \S+ has not moved for \d+ s after 7 optimizer steps: ", failure)
    assert "time.sleep(600)  # the fault. rank 0 waits for it in " in failure, log
    assert (tmp_path / "output" / "hang.json").exists()


def test_a_rank_whose_data_end_earlier_is_named_with_the_steps(command: Command, tmp_path: Path) -> None:
    failure, log = failure_of(command, tmp_path, "unequal steps", culprit=1)
    assert re.match(
        r"Unequal steps: rank 1 of 2 ended its script with exit code 0 after 7 optimizer steps, and rank 0 waits "
        r"for it after [0-9]+ as well: in a call that all ranks must make, .* or in its next step\. .*finish_if",
        failure,
    ), log
