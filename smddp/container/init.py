"""``python -m smddp.container.init PROGRAM ARGUMENTS...``: a container's first process, which makes a stop arrive.

AWS's training toolkit never tells the script of SIGTERM (aws/sagemaker-training-toolkit issues 125 and 173), and as
the first process it is not even ended by it. So this one starts the program, and sends SIGTERM and SIGINT to the
job's ranks themselves; no launcher hears of it, which would kill them before their checkpoint is written. What they
do then, and how long they may take, is theirs and the platform's. It needs no torch and changes nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence, Set
from contextlib import suppress

from smddp.container.endings import ENDINGS_VARIABLE, all_resumable
from smddp.container.orphans import adopt_orphans
from smddp.container.ranks import find_ranks, find_script, processes_below
from smddp.stopping import RESUMABLE

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

DEFAULT_SIGNALS = (*STOP_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ)
"""What the program starts with as it would anywhere; Python ignores the last two for itself."""

LOOK_SECONDS = 0.1
"""How often ranks are looked for once a stop came: those that are just being started hear of it too."""

FAREWELL_SECONDS = 30.0
"""How long the program may go on once all ranks ended resumable: the toolkit's MPI workers wait for a word of the first
host, which it only sends after a success."""

PATIENCE_SECONDS = 10.0
"""How long ranks are awaited that a launcher has not started yet; without any, there is nothing to save."""


class Init:
    """A program and the ranks below it, from its start to its end."""

    def __init__(self, command: Sequence[str], endings: str) -> None:
        self._endings = endings
        self._stop: signal.Signals | None = None
        self._stopped_at = 0.0
        self._told = set[int]()
        self._over_at: float | None = None
        self._ended: dict[int, int] = {}
        # From here on signals wait until they are asked for: none is lost while the program starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, [*STOP_SIGNALS, signal.SIGCHLD])
        adopt_orphans()
        environ = {**os.environ, ENDINGS_VARIABLE: endings}
        self._program = os.posix_spawnp(command[0], list(command), environ, setsigmask=[], setsigdef=DEFAULT_SIGNALS)

    def run(self) -> int:
        """Wait for the program, and after a stop for all who were told of it.

        Returns:
            75 if every rank ended resumable, else the program's exit code, as a shell sees it.
        """
        while self._program not in self._ended or self._told_and_alive():
            arrived = signal.sigtimedwait(
                [*STOP_SIGNALS, signal.SIGCHLD], LOOK_SECONDS if self._stop is not None else 3600
            )
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                self._stop, self._stopped_at = signal.Signals(arrived.si_signo), time.monotonic()
                self._send(self._stop, self._told & processes_below(os.getpid()).keys())
            self._reap()
            if self._stop is not None and self._program not in self._ended:
                self._tell(self._stop)
                self._end_program_after_ranks()
        if all_resumable(self._endings, self._told):
            return RESUMABLE
        status = self._ended[self._program]
        return status if status >= 0 else 128 - status

    def _tell(self, stop: signal.Signals) -> None:
        """Tell the ranks that have not heard of it; where nobody has and there are none, the script."""
        root = os.getpid()
        processes = find_ranks(root) - self._told
        if not self._told and not processes:
            processes = find_script(self._program)
            if not processes and time.monotonic() - self._stopped_at > PATIENCE_SECONDS:
                processes = {self._program}
        self._send(stop, processes)
        self._told |= processes

    def _send(self, stop: signal.Signals, processes: Set[int]) -> None:
        for process in processes:
            _say(f"{stop.name}: telling process {process}.")
            with suppress(ProcessLookupError):
                os.kill(process, stop)

    def _end_program_after_ranks(self) -> None:
        if self._told_and_alive() or not all_resumable(self._endings, self._told):
            return
        now = time.monotonic()
        self._over_at = self._over_at or now + FAREWELL_SECONDS
        if now > self._over_at:
            _say("all ranks have ended resumable, and the program waits for something else: ending it.")
            self._send(signal.SIGTERM, {self._program})
            self._over_at = now + FAREWELL_SECONDS

    def _told_and_alive(self) -> bool:
        return bool(self._told) and not self._told.isdisjoint(processes_below(os.getpid()))

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def forget_outcome(base: str) -> None:
    """Remove what a toolkit wrote of how a job ended: it takes a stop for a failure, or on a worker for a success."""
    for name in ("failure", "success"):
        with suppress(FileNotFoundError):
            os.unlink(f"{base}/output/{name}")  # noqa: PTH108, this must start fast: no pathlib


def _say(text: str) -> None:
    sys.stderr.write(f"smddp.container.init: {text}\n")


def main(command: Sequence[str]) -> int:
    """The program; returns its exit code."""
    if not command:
        _say("give it the program to run, such as: python -m smddp.container.init train")
        return 2
    endings = f"{os.environ.get('TMPDIR', '/tmp')}/smddp-endings-{os.urandom(8).hex()}"  # noqa: S108
    os.mkdir(endings, mode=0o700)  # noqa: PTH102
    try:
        code = Init(command, endings).run()
    except FileNotFoundError as error:
        _say(f"there is no program {command[0]}: {error}")
        return 127
    finally:
        shutil.rmtree(endings, ignore_errors=True)
    if code == RESUMABLE:
        forget_outcome(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
