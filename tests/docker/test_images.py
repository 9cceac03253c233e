"""What a training image has: a `train` that starts, and ssh between its containers, which mpirun needs."""

from __future__ import annotations

import subprocess
import time
import uuid

import pytest

from estimators.docker.docker_program import docker
from tests.docker.images import Images

pytestmark = pytest.mark.docker


def run(image: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", "run", "--rm", image, *command], capture_output=True, text=True, check=False)


def test_train_without_a_job_says_what_is_missing(images: Images) -> None:
    own, aws = run(images.smddp, "train"), run(images.toolkit, "train")
    assert own.returncode == 1
    assert "There is no /opt/ml/input/config/resourceconfig.json" in own.stdout + own.stderr
    assert aws.returncode == 1
    assert "sagemaker_program" in aws.stdout + aws.stderr
    assert "sagemaker_pytorch_container" in aws.stdout + aws.stderr


def test_ranks_start_on_another_container_over_ssh(images: Images) -> None:
    """From smddp's image to AWS's: a session that is neither a login nor interactive finds orted, python and smddp."""
    name = f"smddp-tests-{uuid.uuid4().hex}"
    rank = "import os, smddp; from mpi4py import MPI; print(os.uname().nodename, MPI.COMM_WORLD.rank)"
    docker("network", "create", name)
    try:
        server = ["--name", name, "--hostname", "algo-1", "--network", name, "--network-alias", "algo-1"]
        docker("run", "--detach", *server, "--entrypoint", "/usr/sbin/sshd", images.toolkit, "-D")
        mpirun = ["mpirun", "--allow-run-as-root", "--host", "algo-1:2", "-np", "2", "python", "-c", rank]
        said = docker("run", "--rm", "--network", name, "--env", "OMP_NUM_THREADS=1", images.smddp, *mpirun)
    finally:
        docker("rm", "--force", name)
        docker("network", "rm", name)
    assert sorted(said.split("\n")) == ["algo-1 0", "algo-1 1"]


def test_the_command_line_is_there(images: Images) -> None:
    for image in (images.smddp, images.toolkit):
        assert "launcher: single" in docker("run", "--rm", image, "smddp", "env")


def test_smddp_is_compiled(images: Images) -> None:
    """Each container would compile it anew."""
    program = (
        "import importlib.util, os, smddp; print(os.path.exists(importlib.util.cache_from_source(smddp.__file__)))"
    )
    for image in (images.smddp, images.toolkit):
        assert docker("run", "--rm", "--entrypoint", "python", image, "-B", "-c", program) == "True"


def test_no_compiler_stays_behind(images: Images) -> None:
    for image in (images.smddp, images.toolkit):
        assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", "command -v gcc cc || echo none") == "none"


def test_a_stop_reaches_the_script_below_the_bash_that_sdk_v3_begins_a_container_with(images: Images) -> None:
    name = f"smddp-tests-{uuid.uuid4().hex}"
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True)\n"
    script += "while True: time.sleep(0.1)"
    begin = ["--entrypoint", "/bin/bash", images.smddp, "-c", 'python -c "$1"; code=$?; exit $code', "bash", script]
    try:
        docker("run", "--detach", "--name", name, "--env", "SM_CURRENT_HOST=algo-1", *begin)
        while "ready" not in docker("logs", name):
            time.sleep(0.1)
        docker("kill", "--signal", "TERM", name)
        assert docker("wait", name) == "7"
    finally:
        docker("rm", "--force", name)
