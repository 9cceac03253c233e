"""``python -m smddp.launch.mpi_host``: a host on which another one's mpirun starts ranks, over ssh.

It runs sshd, waits for the first host's line (``smddp.launch.mpi_hosts``), and ends with the job's exit code, or with
an error if the first host is lost. SIGTERM and SIGINT reach the ranks that run here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from smddp.errors import DistributedError
from smddp.launch.failure_file import FailureFile, tell_failure
from smddp.launch.mpi_hosts import LINE, WAIT_SECONDS, refuse_loopback
from smddp.process.exit_codes import RESUMABLE
from smddp.process.leftovers import Leftovers
from smddp.process.process_tree import (
    RankStops,
    find_ranks,
    reap_children,
    send_to_those_that_catch,
)
from smddp.process.program import forward_signals

logger = logging.getLogger(__name__)

SSHD = "/usr/sbin/sshd"

_OPTIONS = ("LogLevel=ERROR", "ClientAliveInterval=5", "ClientAliveCountMax=3", "MaxStartups=100")
_LOOK_SECONDS = 0.1
_LEAVE_SECONDS = 10.0


def serve(first: str) -> int:
    """Let the host ``first`` run ranks here until it sends the job's exit code, and return that code.

    Raise DistributedError if sshd is missing or can't serve, or if the first host does not come or is lost; SystemExit
    if a stop comes before the first host runs mpirun.
    """
    refuse_loopback(first)
    if not Path(SSHD).exists():
        raise DistributedError(f"mpi on several hosts needs {SSHD}: install openssh-server in the image.")
    leftovers = Leftovers()  # also adopts orted, which starts the ranks and outlives its ssh session
    Path(LINE).unlink(missing_ok=True)
    os.mkfifo(LINE, mode=0o600)
    line = os.open(LINE, os.O_RDONLY | os.O_NONBLOCK)
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = subprocess.Popen([SSHD, "-D", "-e", *(word for option in _OPTIONS for word in ("-o", option))])

    stops: list[int] = []
    forward_signals(stops.append, lambda signum: send_to_those_that_catch(find_ranks(os.getpid()), signum))
    failure_file = FailureFile()
    try:
        code, reason = _await_end(line, sshd.pid, first, stops, leftovers)
        _await_ranks()
        if reason:
            failure_file.record(reason)
    finally:
        for rank in find_ranks(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        sshd.terminate()
        Path(LINE).unlink(missing_ok=True)
    return code


def _await_end(line: int, sshd: int, first: str, stops: Sequence[int], leftovers: Leftovers) -> tuple[int, str]:
    """Read the line until its end, and pass stops on to the ranks; return the exit code and the reason, maybe empty.

    The wait for the first host is bounded by WAIT_SECONDS; the wait for the job is not.
    """
    said = b""
    ranks = RankStops(os.getpid())
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        # Order: read `stops` before the line. So if the first host began before the stop, the line shows it.
        told_to_stop = bool(stops)
        with suppress(BlockingIOError):  # the line is open, without new data
            chunk = os.read(line, 4096)
            said += chunk
            if not chunk and said:
                break
        if told_to_stop and not said:
            raise SystemExit(128 + stops[-1])  # nothing has begun here
        ranks.tell(stops)
        leftovers.end_those_of_ranks({sshd}, logger.warning)
        if not said and time.monotonic() > deadline:
            raise DistributedError(f"{first}, which runs mpirun, did not come within {WAIT_SECONDS:.0f} s.")
        if sshd in reap_children():
            raise DistributedError("sshd has ended; what it says stands above. Is port 22 free on this host?")
        time.sleep(_LOOK_SECONDS)
    last = said.decode(errors="replace").rpartition("\n")[0].rpartition("\n")[2] or "begun"  # the last whole line
    if last == "begun" and stops:
        raise SystemExit(128 + stops[-1])  # the first host was stopped as well, before it ran mpirun
    if last == "begun":
        raise DistributedError(f"{first}, which runs mpirun, was lost: its container or its host has ended.")
    code, _, reason = last.partition(" ")
    return int(code), json.loads(reason)


def _await_ranks() -> None:
    deadline = time.monotonic() + _LEAVE_SECONDS
    while find_ranks(os.getpid()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m smddp.launch.mpi_host", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--first", required=True, help="the host that runs mpirun")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        code = serve(given.first)
    except DistributedError as error:
        tell_failure(error)
        return 1
    if code != 0:
        logger.log(
            logging.INFO if code == RESUMABLE else logging.ERROR, "mpirun on %s ended with code %d.", given.first, code
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
