"""The demos of PyTorch's tutorial, by ``smddp run`` and as a job of two hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker

ENTRYPOINTS = Path(__file__).parents[2] / "entrypoints"
LINE = re.compile(r"demo=(\w+) ranks=(\d) first_loss=([0-9.]+) last_loss=([0-9.]+)")


def check(printed: str, demos: list[str], ranks: str) -> None:
    found = LINE.findall(printed)
    assert [(demo, count) for demo, count, _, _ in found] == [(demo, ranks) for demo in demos], printed
    assert all(float(last) < float(first) for _, _, first, last in found)


def test_each_demo_learns_on_two_ranks_and_again_in_the_same_directory(tmp_path):
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run"]
    for _ in range(2):
        done = subprocess.run(
            [*command, ENTRYPOINTS / "ddp_tutorial.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        check(done.stderr, ["basic", "checkpoint", "model_parallel"], "2")


@pytest.mark.slow
def test_a_demo_runs_as_a_job_of_two_hosts():
    with LocalSageMaker() as sagemaker:
        job = Estimator(
            entry_point="ddp_tutorial.py",
            source_dir=str(ENTRYPOINTS),
            role=sagemaker.role,
            instance_type="ml.g5.xlarge",
            instance_count=2,
            distribution="torchrun",
            hyperparameters={"demo": "checkpoint"},
            sagemaker_session=sagemaker.session,
        ).fit(logs=False)
        printed = "\n".join(message for _, message in job.logs())
    check(printed, ["checkpoint"], "2")
