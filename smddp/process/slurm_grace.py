"""How long Slurm lets a job live that it has told to stop: asked when it has, for only then it is known."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime

_ANSWER_SECONDS = 3.0
"""A controller that takes longer is not waited for: the time is what the question is about."""


def seconds_left(environ: Mapping[str, str], *, since: float) -> float | None:
    """Return the seconds until Slurm sends SIGKILL to this job.

    To a job that still runs, SIGTERM was the warning of ``sbatch --signal``, or a preemption with a GraceTime: it has
    until its end. One that was cancelled, or preempted at once, has KillWait, 30 s unless the cluster is configured
    otherwise.

    Args:
        environ: The environment variables.
        since: Seconds since the job was told to stop.

    Returns:
        The seconds, negative if they are over; None outside of Slurm, or if Slurm does not say.
    """
    job = environ.get("SLURM_JOB_ID")
    if not job or shutil.which("scontrol") is None:
        return None
    shown = _scontrol("show", "job", job, "--oneliner")
    state, end = (_field(shown, name) for name in ("JobState", "EndTime"))
    if state == "RUNNING":
        return None if end == "Unknown" else datetime.fromisoformat(end).timestamp() - time.time()
    wait = re.match(r"\d+", _field(_scontrol("show", "config"), "KillWait"))
    return None if wait is None else float(wait[0]) - since


def _field(shown: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=\s*(\S+)", shown)
    return found[1] if found is not None else "Unknown"


def _scontrol(*words: str) -> str:
    """Return what scontrol prints; nothing if it fails or takes too long."""
    try:
        command = ["scontrol", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""
