"""One host as a Slurm task: an srun, and on the node the supervisor that starts the program and ends it."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import IO, Any, BinaryIO, cast

from estimators.local.executors.executor import ExecutorError
from estimators.local.executors.slurm import slurm_program
from estimators.local.executors.slurm.allocation import Allocation, options_for_host
from estimators.local.executors.supervised_process import (
    START_SECONDS,
    SUPERVISOR,
    Supervised,
    SupervisedProgram,
    not_started,
)
from smddp.process.exit_codes import as_shell

logger = logging.getLogger(__name__)

_KILL_SECONDS = 15.0
"""Time limit in seconds for a node to end a killed program; a lost node does not answer, and srun waits for it."""


class SlurmHost(Supervised):
    """A `HostProcess` on a node of an allocation; raises HostStartError with the reason if it can't be started."""

    def __init__(self, program: SupervisedProgram, allocation: Allocation, node: str) -> None:
        self._allocation = allocation
        self._words: deque[str] = deque(maxlen=20)
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        # The standard error of srun carries the supervisor's status; the program writes both its streams to standard
        # output.
        srun = subprocess.Popen(
            [
                slurm_program.program("srun"),
                *options_for_host(allocation, node),
                *(sys.executable, "-I", "-S", SUPERVISOR, "2"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=slurm_program.environment(),
            cwd="/",
            bufsize=0,
        )
        assert srun.stdout is not None
        assert srun.stderr is not None
        threading.Thread(target=self._read_status, args=(srun.stderr, answers), daemon=True).start()
        super().__init__(program, srun, cast(BinaryIO, srun.stdout))
        try:
            answer = answers.get(timeout=START_SECONDS)
        except BaseException as error:
            self._abandon()
            if isinstance(error, queue.Empty):
                raise not_started(program, f"it did not run within {START_SECONDS:g} seconds on {node}") from error
            raise
        if "pid" not in answer:
            self._output.close()
            self.wait()
            if "error" not in answer:  # the supervisor said nothing: srun could not start it
                raise ExecutorError(f"{program.name}: srun started nothing on {node}: {' '.join(self._words)}")
            remedy = " Give Slurm(isolated=False)." if answer.get("no_namespaces") else ""
            raise not_started(program, f"on {node}: {answer['error']}.{remedy}".replace("..", "."))

    def kill(self) -> None:
        """End the program and every process that it started, at once."""
        super().kill()
        late = threading.Timer(_KILL_SECONDS, self._process.kill)
        late.daemon = True
        late.start()

    def _loss(self, returncode: int) -> str | None:
        if returncode == 0:
            return None
        try:
            lost = self._allocation.loss()
        except ExecutorError as error:
            lost = f"Slurm does not say: {error}"
        if lost is None and as_shell(returncode) == 128 + signal.SIGKILL:
            return "its first process was killed from outside"
        return lost

    def _read_status(self, status: IO[bytes], answers: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Find the supervisor's answer among the lines of srun, and log those to their end."""
        with status:
            for line in status:
                answer = None
                with contextlib.suppress(ValueError):
                    answer = json.loads(line)
                if isinstance(answer, dict):
                    answers.put(answer)
                else:
                    self._words.append(line.decode(errors="replace").strip())
                    logger.info("%s", self._words[-1])
        answers.put({})  # ends the wait if no answer has come
