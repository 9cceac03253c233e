"""What a host's program finds in its environment.

From this process it gets only what any program needs to run here (`INHERITED`). Never AWS credentials, nor the files
that they stand in: a job must not reach the user's account. Later lines win:

1. what is inherited, and what an image sets: `python` and `torchrun` are those of the Python that runs the platform;
2. the platform's: the job's region, and the variables that the engine was given (endpoint, keys);
3. the request's Environment;
4. what names the job, which the platform owns.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Mapping
from pathlib import Path

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
    "CUDA_*",
    "NVIDIA_*",
    "PIP_*",
    "SSL_CERT_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Programs, libraries, devices, and what ``requirements.txt`` needs to reach a package index."""

_IMAGE = {
    "PYTHONUNBUFFERED": "1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def host_environment(
    *,
    job_name: str,
    job_arn: str,
    region: str,
    platform: Mapping[str, str],
    master_port: int,
    host_count: int,
    temporary: str | None,
    requested: Mapping[str, str],
) -> dict[str, str]:
    """The environment of every host of a job.

    Args:
        job_name: The job's name.
        job_arn: The job's ARN.
        region: The job's AWS region.
        platform: The engine's ``container_environment``.
        master_port: A port that is free on this machine, which all hosts of the job share.
        host_count: How many hosts share this machine's cores. Left alone, the threads of each would take them all,
            and wait for each other: a step of a small network takes twenty times as long.
        temporary: A directory for temporary files that goes away with the job; None leaves it to the inherited TMPDIR.
        requested: The request's Environment.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in INHERITED)
    }
    return {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // host_count)),
        **inherited,
        **_IMAGE,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]),
        **({"TMPDIR": temporary} if temporary else {}),
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "SMDDP_MASTER_PORT": str(master_port),
        **platform,
        **requested,
        "TRAINING_JOB_NAME": job_name,
        "TRAINING_JOB_ARN": job_arn,
    }
