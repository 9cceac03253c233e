"""Runs one child process of the container: starts, signals, watches and reaps it.

It also adopts, reaps and ends processes that the job leaves behind. Output passes through unchanged; the end of the
standard error is kept, for the failure's reason.

``python -m smddp.container.job_process train.sh --lr 0.1`` is a rank that is a shell script. A launcher signals only
its ranks, and a shell does not signal its children, so this process does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from smddp.process.inherited import reset_inherited
from smddp.process.leftovers import Leftovers
from smddp.process.log_format import start_log
from smddp.process.output_lines import Tail
from smddp.process.preemption import FORWARDED_SIGNALS
from smddp.process.process_tree import Descendants, reap_children, send_to_those_that_catch
from smddp.process.program import Program, await_exit
from smddp.process.warm_parent import WarmParent

logger = logging.getLogger(__name__)

SHELL = ("/bin/sh", "-c", 'exec "./$0" "$@"')
"""Runs a program of the code directory, whose name and arguments follow, by its first line (``#!``)."""

GROUP_GRACE = 120.0
"""Seconds that the programs of a shell script have to end after a stop: SageMaker's own limit for a container."""

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How the child ended."""

    code: int
    """The exit code as a shell sees it: 128 + n for a process that signal n killed."""
    tail: str
    """The end of its standard error."""
    stop: int | None
    """The signal of a stop while it ran; None if there was none."""


class StoppedBeforeStart(BaseException):
    """A stop came before the job's processes started.

    Like KeyboardInterrupt it can be raised anywhere, even inside a log call, and no ``except Exception`` may swallow
    it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} came before the job's processes were started.")
        self.code = 128 + signum


def raise_on_stop() -> None:
    """Raise ``StoppedBeforeStart`` on SIGTERM and SIGINT from now on, while nothing runs yet."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise StoppedBeforeStart(signum)

    for signum in FORWARDED_SIGNALS:
        signal.signal(signum, stop)


def run(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    directory: Path,
    group: bool,
    look: Callable[[int], None] = lambda _: None,
    warm: WarmParent | None = None,
) -> Result:
    """Run a program with exactly this environment, wait for it, and forward SIGTERM and SIGINT to it from now on.

    Call it from the main thread of a process without other children, because it reaps all of them. ``group`` gives the
    program its own process group, and signals all of that: for programs that do not signal their children. ``look`` is
    called repeatedly, with the program's process ID, while the program runs. ``warm``, a child of this process from
    which the program is forked, ends with the program.
    """
    tail = Tail()

    def stop(pid: int, signum: int) -> None:
        logger.info("%s: telling %s.", signal.Signals(signum).name, Path(command[0]).name)
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(pid, signum)

    def pass_on(pid: int, signum: int) -> None:
        send_to_those_that_catch({pid, *(Descendants(pid).parents if group else ())}, signum)

    leftovers = Leftovers()
    program = Program(
        command,
        environ=environ,
        directory=directory,
        new_session=group,
        warm=warm,
        stop=stop,
        pass_on=pass_on,
        heed=tail.keep,
    )
    process = program.process
    # Poll, and reap all children, so that orphans are reaped, too. A blocking wait could delay the handler of a signal
    # that arrives just before it.
    while (status := reap_children().get(process.pid)) is None:
        look(process.pid)
        await_exit(process.pid, _LOOK_SECONDS)
    process.returncode = status  # Popen can't get it: the child is reaped
    if group and program.stops:
        _await_group(process.pid)
    if warm is not None:
        warm.close()
    leftovers.end(logger.warning)
    code = program.exit_code()
    stopped_by = program.stops[0] if program.stops else None
    return Result(code=code, tail=tail.text, stop=stopped_by)


def _await_group(group: int) -> None:
    """Wait until a process group is empty, at most GROUP_GRACE: after the shell, its programs may still be saving."""
    deadline = time.monotonic() + GROUP_GRACE
    with suppress(ChildProcessError):  # the group is empty
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


if __name__ == "__main__":
    reset_inherited()
    start_log()
    sys.exit(run([*SHELL, *sys.argv[1:]], environ=os.environ, directory=Path.cwd(), group=True).code)
