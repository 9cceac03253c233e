"""``python -m smddp.container.init PROGRAM ARGUMENTS...``: a container's first process, which makes a stop arrive.

AWS's training toolkit does not pass SIGTERM on to the script (aws/sagemaker-training-toolkit issues 125 and 173), and
as the first process SIGTERM does not even end it. So this program starts the toolkit, and sends SIGTERM and SIGINT to
the job's ranks themselves; launchers do not get them, because they would kill the ranks before their checkpoint is
written. The ranks and the platform decide how long saving takes. It needs no torch and changes nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from smddp.process.exit_codes import (
    EXIT_CODES_VARIABLE,
    RESUMABLE,
    announce_stop,
    as_shell,
    make_directory,
    read_exit_codes,
)
from smddp.process.inherited import reset_inherited
from smddp.process.leftovers import Leftovers
from smddp.process.preemption import FORWARDED_SIGNALS
from smddp.process.process_tree import Descendants, Marks, catches, reap_children

PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals passed on to the program as if it were the first process."""

DEFAULT_SIGNALS = (*FORWARDED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals reset to their default for the program; Python itself ignores the last two."""

LOOK_SECONDS = 0.1
"""Seconds between two searches for ranks after a stop: ranks that start later must get the signal, too."""

FAREWELL_SECONDS = 30.0
"""Seconds that the program may run on after all ranks ended resumable: the toolkit's MPI workers wait for a message of
the first host, which is sent only after a success."""

PATIENCE_SECONDS = 10.0
"""Seconds to wait for a launcher's first ranks, and for each rank's signal handler: without a handler, while it imports
torch, the signal would kill it."""

STEP_SECONDS = 1.0
"""Seconds that the program may run without children before it is signalled itself; a shell has none between steps."""


class Init:
    """A program and the ranks below it, from its start to its end; OSError if it can't be started.

    ``exit_codes`` is the directory in which ranks report exit codes; None if none can be made.
    """

    def __init__(self, command: Sequence[str], exit_codes: str | None) -> None:
        self._exit_codes = exit_codes
        self._stop: signal.Signals | None = None
        self._stopped_at = 0.0
        self._told = set[int]()
        self._told_ranks = set[int]()
        self._told_marks: Marks = frozenset()
        self._seen: dict[int, float] = {}
        self._over_at: float | None = None
        self._ended: dict[int, int] = {}
        # From here on signals stay pending until `_hear` takes them: none is lost while the program starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, [*FORWARDED_SIGNALS, *PASSED_ON, signal.SIGCHLD])
        self._leftovers = Leftovers()
        environ = {**os.environ, EXIT_CODES_VARIABLE: exit_codes} if exit_codes is not None else os.environ
        self._program = os.posix_spawnp(command[0], list(command), environ, setsigmask=[], setsigdef=DEFAULT_SIGNALS)

    def run(self) -> int:
        """Wait for the program, and after a stop for all signalled processes; return the exit code as for a shell."""
        while True:
            self._hear()
            self._ended |= reap_children()
            over = self._program in self._ended
            if self._stop is not None:
                descendants = Descendants(os.getpid())
                if not over:
                    self._tell(self._stop, descendants)
                    self._end_program_after_ranks(descendants)
                over = over and self._told.isdisjoint(descendants.parents)
            if over:
                self._leftovers.end(_say)
                return as_shell(self._ended[self._program])

    def all_saved(self) -> bool:
        """Return whether a stop came, and every signalled process reported that it ended resumable.

        Every rank must report it. Of a shell's steps, some may report nothing or success. Without a stop, the program's
        own exit code counts.
        """
        codes = read_exit_codes(self._exit_codes) if self._exit_codes is not None else {}
        if self._told_ranks:
            return all(codes.get(rank) == RESUMABLE for rank in self._told_ranks)
        said = {codes[process] for process in self._told if process in codes}
        return RESUMABLE in said and said <= {0, RESUMABLE}

    def _hear(self) -> None:
        """Wait for a signal, or until the next search for ranks, and handle it."""
        arrived = signal.sigtimedwait(
            [*FORWARDED_SIGNALS, *PASSED_ON, signal.SIGCHLD], LOOK_SECONDS if self._stop is not None else 3600
        )
        if arrived is None or arrived.si_signo == signal.SIGCHLD:
            return
        signum = signal.Signals(arrived.si_signo)
        if signum in PASSED_ON:
            self._send(signum, {self._program} - self._ended.keys())
            return
        if self._stop is None:
            self._stopped_at = time.monotonic()
            if self._exit_codes is not None:
                announce_stop(self._exit_codes)
        self._stop = signum
        self._send(signum, self._told & Descendants(os.getpid()).parents.keys())

    def _tell(self, stop: signal.Signals, descendants: Descendants) -> None:
        """Signal the processes that have a handler, or had enough time to set one."""
        now = time.monotonic()
        ranks = {rank: marks for rank, marks in descendants.ranks().items() if not marks <= self._told_marks}
        waiting = ranks.keys() if ranks or self._told_ranks else self._script(descendants, now)
        self._seen = {process: self._seen.get(process, now) for process in waiting}
        for process, since in self._seen.items():
            patience = STEP_SECONDS if process == self._program else PATIENCE_SECONDS
            if catches(process, stop) or now - since > patience:
                self._send(stop, {process})
                self._told.add(process)
                if process in ranks:
                    self._told_ranks.add(process)
                    self._told_marks |= ranks[process]

    def _script(self, descendants: Descendants, now: float) -> set[int]:
        """Return the processes to signal if there are no ranks: one step of a shell script after the other."""
        if not self._told.isdisjoint(descendants.parents):
            return set()  # other processes of its pipeline must not end before it
        script = descendants.script(self._program) - self._told
        if self._told:
            return script - {self._program}
        return script or ({self._program} if now - self._stopped_at > PATIENCE_SECONDS else set())

    def _send(self, signum: signal.Signals, processes: Iterable[int]) -> None:
        for process in processes:
            _say(f"{signum.name}: telling process {process}.")
            with suppress(ProcessLookupError):
                os.kill(process, signum)

    def _end_program_after_ranks(self, descendants: Descendants) -> None:
        if not self._told.isdisjoint(descendants.parents) or not self.all_saved():
            return
        now = time.monotonic()
        self._over_at = self._over_at or now + FAREWELL_SECONDS
        if now > self._over_at:
            _say("all ranks have ended resumable, and the program waits for something else: ending it.")
            self._send(signal.SIGTERM, {self._program})
            self._over_at = now + FAREWELL_SECONDS


def _forget_toolkit_outcome(base: str) -> None:
    """Remove the toolkit's outcome files: it takes a stop for a failure, or on a worker for a success."""
    for name in ("failure", "success"):
        with suppress(FileNotFoundError):
            os.unlink(f"{base}/output/{name}")  # noqa: PTH108, without pathlib this starts faster


def _say(text: str) -> None:
    sys.stderr.write(f"smddp.container.init: {text}\n")


def main(command: Sequence[str]) -> int:
    """Run the program; return its exit code, or 75 after a stop if all ranks ended resumable."""
    reset_inherited()
    if not command:
        _say("give it the program to run, such as: python -m smddp.container.init train")
        return 2
    if "SAGEMAKER_TRAINING_MODULE" in os.environ and os.environ.get("SMDDP_MAX_RESTARTS") not in (None, "", "0"):
        _say("SMDDP_MAX_RESTARTS does nothing with AWS's toolkit, only with smddp's own train.")
    exit_codes = make_directory(os.environ)
    if exit_codes is None:
        _say("no directory can be made in TMPDIR, /tmp or /dev/shm: a stop will have the program's own exit code.")
    try:
        return _run(command, exit_codes)
    finally:
        if exit_codes is not None:
            shutil.rmtree(exit_codes, ignore_errors=True)


def _run(command: Sequence[str], exit_codes: str | None) -> int:
    try:
        init = Init(command, exit_codes)
    except FileNotFoundError as error:
        _say(f"there is no program {command[0]}: {error}")
        return 127
    except OSError as error:
        _say(f"the program {command[0]} can't be started: {error}")
        return 126
    code = init.run()
    if not init.all_saved():
        return code
    _forget_toolkit_outcome(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    return RESUMABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
