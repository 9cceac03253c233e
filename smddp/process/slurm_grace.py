"""Ask Slurm how much time a job has left after a request to stop. Slurm knows it only then."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime

_ANSWER_SECONDS = 3.0
"""Seconds to wait for Slurm's controller, at most: the wait uses up the grace period."""


def seconds_left(environ: Mapping[str, str], *, since: float) -> float | None:
    """Return the seconds until Slurm sends SIGKILL, negative if past; None outside of Slurm, or without an answer.

    `since` is the seconds since the first signal. A job that is still RUNNING (``sbatch --signal``, or a preemption
    with GraceTime) has until its EndTime; a cancelled or immediately preempted job has KillWait, 30 s by default.
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
    """Return the output of scontrol; empty if it fails or takes too long."""
    try:
        command = ["scontrol", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""
