"""How long a stop may take, and the end of a process that takes longer: it evaluates, or waits for a rank that hangs.

A stop takes effect between two steps. If none is reached in time, SIGKILL would end the process without a reason.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType

from smddp.process.preemption import StopSignal

logger = logging.getLogger(__name__)

STOP_SECONDS = 90.0
"""Bound in seconds, from SIGTERM until the last checkpoint is durable. SageMaker sends SIGKILL after 120 s, and the
report of a checkpoint that is not durable takes time, too."""

_PART_OF_GRACE = STOP_SECONDS / 120
"""The same fraction, for another grace period."""

LEAST_SECONDS = 10.0
"""Seconds that the last checkpoint gets in any case, even if the step during which SIGTERM came took most of them."""

_POLL_SECONDS = 0.5


def seconds_to_save(stop_age: float, *, knows_slurm: bool) -> float:
    """Return the seconds that the last checkpoint may take; SIGTERM came ``stop_age`` seconds ago.

    At least ten. On rank 0 under Slurm, at most three quarters of the time left.
    """
    seconds = STOP_SECONDS - stop_age
    if knows_slurm and (left := seconds_left(os.environ, since=stop_age)) is not None:
        logger.info("Slurm ends this job in %.0f s", left)
        seconds = min(seconds, _PART_OF_GRACE * left)
    return max(seconds, LEAST_SECONDS)


class StopDeadline:
    """Call ``late``, which ends the process, if a stop does not take effect in time; a thread watches.

    ``late`` is called in the thread.
    """

    def __init__(self, stop_signal: StopSignal, seconds: float, late: Callable[[], None]) -> None:
        self._stop_signal = stop_signal
        self._seconds = seconds
        self._late = late
        # `__exit__` sets it, and the watcher returns within half a second. The thread is never joined: it may be inside
        # ``late``, which does not return.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-deadline", daemon=True)

    def __enter__(self) -> StopDeadline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self._stop_signal.look()
            if self._stop_signal.is_unheeded:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # its handler ends the script
            if self._stop_signal.age > self._seconds:
                self._late()
                return


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
