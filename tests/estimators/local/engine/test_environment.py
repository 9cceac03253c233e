"""What a job's program finds in its environment, and what it must not find."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from estimators.local.engine.environment import host_environment


def environment(
    *, platform: dict[str, str] | None = None, requested: dict[str, str] | None = None, host_count: int = 1
) -> dict[str, str]:
    return host_environment(
        job_name="job",
        job_arn="arn",
        region="eu-west-1",
        platform=platform or {},
        master_port=7001,
        host_count=host_count,
        temporary=None,
        requested=requested or {},
    )


def test_the_users_aws_credentials_never_reach_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/home/me/.aws/credentials")
    found = environment()
    assert "secret" not in found.values()
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == found["AWS_CONFIG_FILE"] == "/dev/null"
    assert found["AWS_EC2_METADATA_DISABLED"] == "true"


def test_hosts_share_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert environment(host_count=2)["OMP_NUM_THREADS"] == "4"
    assert environment(host_count=16)["OMP_NUM_THREADS"] == "1"
    assert environment(host_count=2, requested={"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_what_a_program_needs_to_run_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LC_ALL", "C")
    found = environment()
    assert (found["CUDA_VISIBLE_DEVICES"], found["LC_ALL"]) == ("1", "C")


def test_a_program_finds_this_python_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ContainerEntrypoint that runs ``python`` or ``torchrun`` means the image's, which this Python stands for."""
    monkeypatch.setenv("PATH", "/somewhere")
    found = environment()
    assert found["PATH"].endswith(":/somewhere")
    assert Path(shutil.which("python3", path=found["PATH"]) or "").parent == Path(sys.executable).parent


def test_the_platform_tells_region_job_and_port() -> None:
    found = environment()
    assert found["AWS_REGION"] == found["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert (found["TRAINING_JOB_NAME"], found["TRAINING_JOB_ARN"]) == ("job", "arn")
    assert found["SMDDP_MASTER_PORT"] == "7001"


def test_the_request_wins_over_the_platform_but_not_over_the_jobs_name() -> None:
    found = environment(
        platform={"AWS_ACCESS_KEY_ID": "local", "A": "platform"},
        requested={"A": "request", "SMDDP_MASTER_PORT": "1", "TRAINING_JOB_NAME": "other", "TRAINING_JOB_ARN": "x"},
    )
    assert (found["A"], found["AWS_ACCESS_KEY_ID"], found["SMDDP_MASTER_PORT"]) == ("request", "local", "1")
    assert (found["TRAINING_JOB_NAME"], found["TRAINING_JOB_ARN"]) == ("job", "arn")
