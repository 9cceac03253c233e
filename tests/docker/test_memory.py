"""Containers with little memory: what is told of a rank, or of a loader's worker, that the kernel ends."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.errors import TrainingJobFailed
from estimators.local import Docker, LocalSageMaker
from tests.docker.images import Images
from tests.smddp.failure.test_host_memory import GREEDY, LOADS

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


def failure_in(image: str, directory: Path, script: str, *limits: str) -> tuple[int, str]:
    """Return the exit code and the failure of a job of two ranks in a container."""
    (directory / "train.py").write_text(script)
    options = [*limits, f"--volume={directory}:/job", "--env=SMDDP_RUN_DIR=/job", "--entrypoint=python"]
    ranks = ["-m", "smddp.launch.torchrun", "--nproc-per-node", "2", "/job/train.py"]
    ended = subprocess.run(
        ["docker", "run", "--rm", *options, image, *ranks],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    failure = directory / "output" / "failure"
    return ended.returncode, failure.read_text() if failure.exists() else ended.stderr


def test_a_rank_is_ended_for_lack_of_memory(images: Images, tmp_path: Path) -> None:
    code, failure = failure_in(images.smddp, tmp_path, GREEDY, "--memory=1g", "--memory-swap=1g")
    assert code == 137, failure
    assert re.match(
        r"Rank 1 of 2 on \S+ was killed by SIGKILL, by the kernel, because this host ran out of memory \(an OOM kill\)"
        r": it may use 1024 MiB\.\nUse fewer num_workers",
        failure,
    )


def test_shared_memory_is_full(images: Images, tmp_path: Path) -> None:
    code, failure = failure_in(images.smddp, tmp_path, LOADS.format(is_bus_error=True), "--shm-size=24m")
    assert code == 1, failure
    assert "A DataLoader worker was killed by SIGBUS, often because /dev/shm is full; it has 24 MiB, now " in failure


def test_the_one_process_of_a_job_without_a_distribution(images: Images, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY.replace('os.environ["RANK"] == "1"', "True"))
    with LocalSageMaker(executor=Docker(memory="1g")) as platform:
        job = Estimator(
            entry_point="greedy.py",
            source_dir=tmp_path,
            image_uri=images.smddp,
            role="arn:aws:iam::123456789012:role/training",
            instance_type="ml.m5.xlarge",
            instance_count=1,
            sagemaker_session=platform.session,
        )
        with pytest.raises(TrainingJobFailed) as failed:
            job.fit(logs=False)
    assert re.search(r"killed by SIGKILL, by the kernel, because this host ran out of memory", str(failed.value))
    assert "  loading everything" in str(failed.value)
