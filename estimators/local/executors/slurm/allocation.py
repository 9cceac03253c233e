"""Nodes allocated to a salloc process, which releases them if this process ends."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from estimators.local.executors.executor import ExecutorError, HostStartError
from estimators.local.executors.settings import Slurm
from estimators.local.executors.slurm import slurm_program
from estimators.local.executors.slurm.slurm_program import program

logger = logging.getLogger(__name__)

_HOLD = 'echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat'
"""The command of salloc: it prints the nodes, and ends with its standard input, which this process keeps open."""
_LOOK_SECONDS = 0.1
_RELEASE_SECONDS = 10.0
_SETTLE_SECONDS = 10.0
"""Time limit in seconds for Slurm to clean up before it reports how a job ended."""


class Allocation:
    """The nodes of a job, one for each host.

    ``name`` is shown in squeue. ``cancelled`` is asked while the job waits in the queue; ``say`` writes a line about
    the wait into the log. Raise HostStartError with Slurm's words if it refuses, or if the job is cancelled.
    """

    def __init__(
        self, settings: Slurm, *, name: str, nodes: int, cancelled: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._words: deque[str] = deque(maxlen=20)
        self._granted: list[str] = []
        # Set after `_granted`, by the thread that reads salloc's answer.
        self._answered = threading.Event()
        command = [program("salloc"), f"--nodes={nodes}-{nodes}", "--ntasks-per-node=1", f"--job-name=smddp-{name}"]
        command += [] if settings.partition is None else [f"--partition={settings.partition}"]
        self._salloc = subprocess.Popen(
            [*command, *settings.options, "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal must not reach Slurm
            env=slurm_program.environment(),
            cwd="/",
        )
        reading = threading.Thread(target=self._read_words, args=(say,), daemon=True)
        reading.start()
        threading.Thread(target=self._read_answer, daemon=True).start()
        try:
            while not self._answered.wait(_LOOK_SECONDS):
                if cancelled():
                    raise HostStartError("the job was ended while it waited for Slurm")
            if not self._granted:
                self._salloc.wait(_RELEASE_SECONDS)
                reading.join(_RELEASE_SECONDS)  # for the last of its words
                raise HostStartError(
                    f"Slurm did not allocate {nodes} nodes: {' '.join(self._words) or 'it does not say why'}"
                )
            self.job, listed = self._granted
            self.addresses = slurm_program.addresses(listed)
            """Addresses by node name, in Slurm's order."""
            say(f"[platform] Slurm job {self.job} on {', '.join(self.addresses)}")
        except BaseException:
            self.release()
            raise

    def loss(self) -> str | None:
        """Return why the nodes are gone; None if they are not."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (state := slurm_program.job_state(self.job)).startswith("COMPLETING") and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return None if state.startswith("RUNNING") else f"Slurm has ended job {self.job}, which is {state}"

    def release(self) -> None:
        """Give the nodes back."""
        assert self._salloc.stdin is not None
        # 1. Without standard input the command of salloc ends, and salloc gives the nodes back.
        # 2. A salloc that is still there, such as one in the queue, gets SIGTERM, then SIGKILL.
        # 3. A killed salloc gives nothing back, so its job is cancelled. Each wait takes `_RELEASE_SECONDS` at most.
        with contextlib.suppress(BrokenPipeError):
            self._salloc.stdin.close()
        if self._answered.is_set() and self._granted:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._salloc.wait(_RELEASE_SECONDS)
        if self._salloc.poll() is None:  # SIGTERM makes it leave the queue
            self._salloc.terminate()
            try:
                self._salloc.wait(_RELEASE_SECONDS)
            except subprocess.TimeoutExpired:
                self._salloc.kill()
                self._salloc.wait()
        if self._salloc.returncode < 0 and self._granted:  # it was killed, and has given nothing back
            try:
                slurm_program.cancel(self._granted[0])
            except ExecutorError as error:
                logger.warning("Slurm job %s may still hold its nodes: %s", self._granted[0], error)

    def _read_answer(self) -> None:
        assert self._salloc.stdout is not None
        with self._salloc.stdout as answer:
            self._granted = answer.readline().split()
            self._answered.set()
            answer.read()

    def _read_words(self, say: Callable[[str], None]) -> None:
        assert self._salloc.stderr is not None
        with self._salloc.stderr as words:
            for line in words:
                self._words.append(line.strip())
                if "queued and waiting" in line or "Pending job allocation" in line:
                    say(f"[platform] {line.strip().removeprefix('salloc: ')}")


def options_for_host(allocation: Allocation, node: str) -> Sequence[str]:
    """Return the options of the srun that starts one program on a node, with all that the allocation has there."""
    return (
        f"--jobid={allocation.job}",
        f"--nodelist={node}",
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        "--mem=0",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        "--export=NONE",  # the program's variables stay out of command lines and Slurm's records
        "--chdir=/",
    )
