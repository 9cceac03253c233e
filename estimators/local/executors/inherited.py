"""The variables that a host's program inherits if it is a process of this machine: only those that any program needs.

They never include AWS credentials, or the paths of their files: a job must not reach the user's account.
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
"""Variables for programs, libraries and devices, and for ``requirements.txt`` to reach a package index."""


def inherited_environment(*, hosts: int) -> dict[str, str]:
    """Return the variables; `python` and `torchrun` are those of the Python that runs the platform.

    ``hosts`` share this machine's cores. Without a limit, the threads of each host would take all cores and wait for
    each other: a step of a small network takes twenty times as long.
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
