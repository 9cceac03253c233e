"""What tests of whole jobs ask for, and wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from estimators.local.engine.transfers.channels import InputChannel
from estimators.local.engine.transfers.objects import S3Uri

Lines = Callable[..., list[str]]

TWO_HOSTS = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 50, "MaxWaitTimeInSeconds": 100},
}


def await_line(lines: Lines, name: str, line: str, *hosts: str) -> None:
    deadline = time.monotonic() + 60
    for host in hosts or ("algo-1",):
        while line not in lines(name, host):
            assert time.monotonic() < deadline, lines(name, host)
            time.sleep(0.02)


def kill_from_outside(name: str) -> None:
    """SIGKILL to the one program of a job, as this machine counts processes."""
    listed = subprocess.run(["pgrep", "-f", f"{name}.py"], capture_output=True, text=True, check=True).stdout.split()
    assert len(listed) == 1
    os.kill(int(listed[0]), signal.SIGKILL)


def channel_of(bucket: str, prefix: str = "data/", **members: Any) -> InputChannel:
    """A plain channel over a prefix, but for ``members``."""
    plain: dict[str, Any] = {
        "name": "train",
        "mode": "File",
        "uri": S3Uri(bucket=bucket, key=prefix),
        "path": PurePosixPath("input", "data", "train"),
        "manifest": False,
        "attributes": (),
        "sharded": False,
    }
    return InputChannel(**(plain | members))
