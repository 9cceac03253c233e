"""What a program of a host that is a process of this machine gets from this process: only what any needs to run here.

Never AWS credentials, nor the files that they stand in: a job must not reach the user's account.
"""

from __future__ import annotations

import fnmatch
import os
import sys
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


def inherited_environment(*, hosts: int) -> dict[str, str]:
    """Return the variables; `python` and `torchrun` are those of the Python that runs the platform.

    Args:
        hosts: How many hosts share this machine's cores. Left alone, the threads of each would take them all, and wait
            for each other: a step of a small network takes twenty times as long.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in INHERITED)
    }
    return {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // hosts)),
        **inherited,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]),
    }
