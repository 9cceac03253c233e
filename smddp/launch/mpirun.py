"""``python -m smddp.launch.mpirun``: the ranks of this one host, through OpenMPI's mpirun.

mpirun answers SIGTERM by killing its ranks a second later. This program stands in front of it and sends SIGTERM and
SIGINT to the ranks themselves, which can then save and end in their own time; mpirun reports how they ended. Ranks on
several hosts are not its business.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from smddp.errors import DistributedError

logger = logging.getLogger(__name__)


def mpirun_command(processes: int, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """The mpirun command line that runs ``command`` in ``processes`` ranks on this host.

    Args:
        processes: The ranks.
        options: More options for mpirun, the user's; they come last and so win.
        command: What each rank runs.
    """
    mpirun = ["mpirun", "--host", f"localhost:{processes}", "-np", str(processes), "--allow-run-as-root"]
    # One host needs no way to others: without this, OpenMPI 4 refuses to start where there is no ssh.
    mpirun += ["--mca", "plm", "isolated"]
    # Ranks may use all cores; shared memory without ptrace, which containers forbid: both as SageMaker's toolkit does.
    mpirun += ["--bind-to", "none", "--map-by", "slot", "--mca", "btl_vader_single_copy_mechanism", "none"]
    return [*mpirun, *options, *command]


def launch(command: Sequence[str]) -> int:
    """Run an mpirun command line and wait for it, forwarding SIGTERM and SIGINT to its ranks.

    Returns:
        The exit code: mpirun's own, which is that of the first rank that failed.

    Raises:
        DistributedError: There is no mpirun.
    """
    if shutil.which(command[0]) is None:
        raise DistributedError(f"There is no {command[0]} on PATH ({os.environ.get('PATH', '')}): install OpenMPI.")
    mpirun: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(signum: int, _frame: FrameType | None) -> None:
        if mpirun is None:
            early.append(signum)
        else:
            _signal_ranks(mpirun.pid, signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, forward)
    mpirun = subprocess.Popen(command)
    for missed in early:
        _signal_ranks(mpirun.pid, missed)
    status = mpirun.wait()
    return status if status >= 0 else 128 - status


def _signal_ranks(mpirun: int, signum: int) -> None:
    """Signal mpirun's children, which are the ranks; mpirun itself as long as it has none."""
    ranks: list[int] = []
    with suppress(OSError):  # it is ending just now
        for thread in Path(f"/proc/{mpirun}/task").glob("*/children"):
            ranks += map(int, thread.read_text().split())
    for process in ranks or [mpirun]:
        with suppress(ProcessLookupError):
            os.kill(process, signum)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m smddp.launch.mpirun", description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], help="one more word for mpirun; may be repeated")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    python = [sys.executable]
    if importlib.util.find_spec("mpi4py") is not None:
        python += ["-m", "mpi4py"]  # an uncaught exception then aborts the other ranks
    try:
        return launch(mpirun_command(given.processes, given.option, [*python, given.script, *given.arguments]))
    except DistributedError as error:
        logger.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
