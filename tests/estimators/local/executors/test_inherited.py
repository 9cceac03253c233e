"""What a host's program gets from the platform's own environment, and what it must not get."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from estimators.local.executors.inherited import inherited_environment


def test_the_users_aws_credentials_never_reach_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in inherited_environment(hosts=1).values()


def test_hosts_share_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert inherited_environment(hosts=2)["OMP_NUM_THREADS"] == "4"
    assert inherited_environment(hosts=16)["OMP_NUM_THREADS"] == "1"


def test_what_a_program_needs_to_run_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LC_ALL", "C")
    found = inherited_environment(hosts=1)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LC_ALL"]) == ("1", "C")


def test_a_program_finds_this_python_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ContainerEntrypoint that runs ``python`` or ``torchrun`` means the image's, which this Python stands for."""
    monkeypatch.setenv("PATH", "/somewhere")
    found = inherited_environment(hosts=1)
    assert found["PATH"].endswith(":/somewhere")
    assert Path(shutil.which("python3", path=found["PATH"]) or "").parent == Path(sys.executable).parent
