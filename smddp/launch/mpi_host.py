"""``python -m smddp.launch.mpi_host``: a host on which another one's mpirun starts ranks, over ssh.

It runs sshd, waits for the first host's line, and ends with the job's exit code, or with an error if the first host is
lost. SIGTERM and SIGINT reach the ranks that run here.

A line is the first host's ssh session to this program, open as long as the job runs. If it opens, the host answers; if
it breaks, the host is lost; its last message has the job's exit code and the reason. No text from the job is part of
a remote command, because a shell there runs it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from smddp.errors import DistributedError
from smddp.failure import ReportFile, tell_failure
from smddp.process.exit_codes import REPORTS_VARIABLE, RESUMABLE
from smddp.process.heartbeat import Heartbeat
from smddp.process.inherited import reset_inherited
from smddp.process.leftovers import Leftovers
from smddp.process.log_format import start_log
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

_SSH_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "LogLevel=ERROR",
    "ConnectTimeout=5",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
SSH = ("ssh", "-x", *(f"-o{option}" for option in _SSH_OPTIONS))
"""Without host key checks: a job's hosts are new, so their keys are unknown, and no user is there to confirm them."""

LINE = "/tmp/smddp-mpi-line"  # noqa: S108, the same on all hosts
"""The named pipe from which a host reads its line."""

WAIT_SECONDS = 300.0
"""Seconds that all hosts together may take to answer, as many as for their names."""

_RETRY_SECONDS = 0.5
_FAREWELL_SECONDS = 5.0


class SshConnection:
    """An open connection to one host; DistributedError if the host does not answer before the deadline."""

    def __init__(self, host: str, deadline: float) -> None:
        self.host = host
        remote = f"[ -p {LINE} ] && exec 3>{LINE} && echo begun >&3 && echo begun && exec cat >&3"
        while True:
            self._ssh = subprocess.Popen(
                [*SSH, host, remote], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert self._ssh.stdout is not None
            if self._ssh.stdout.readline() == b"begun\n":
                return
            _, problem = self._ssh.communicate()
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"{host} did not answer within {WAIT_SECONDS:.0f} s ({problem.decode(errors='replace').strip()}). "
                    "Did its container fail? Do the hosts reach one another at port 22, with one key for all?"
                )
            time.sleep(_RETRY_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether the host still answers."""
        return self._ssh.poll() is None

    def close(self, code: int, reason: str = "") -> None:
        """Send the exit code and the reason, as JSON in one line, and close the connection within 5 s."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._ssh.communicate(f"{code} {json.dumps(reason)}\n".encode(), timeout=_FAREWELL_SECONDS)
        self._ssh.kill()
        self._ssh.wait()


def refuse_loopback(host: str) -> None:
    """Raise DistributedError if a host has no address, or is this machine, where ssh reaches the machine's own sshd."""
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise DistributedError(
            f"{host} has no address here ({error}): does its container run, under this name?"
        ) from error
    if address.startswith("127."):
        raise DistributedError(
            f"{host} is {address}: hosts that are processes of one machine have no ssh of their own, which mpi needs "
            "between hosts. Use distribution='torchrun' or no distribution (smddp.run joins the hosts, one rank on "
            "each), or one instance, or containers as hosts: LocalSageMaker(executor=Docker())."
        )


def connect(hosts: Sequence[str]) -> list[SshConnection]:
    """Open a line to each host; raise DistributedError, with its name, if one does not answer in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    connections = []
    for host in hosts:
        refuse_loopback(host)
        logger.info("Waiting for %s to answer.", host)
        with Heartbeat(f"waiting for {host} to answer at port 22, at most {deadline - time.monotonic():.0f} s"):
            connections.append(SshConnection(host, deadline))
    return connections


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
    os.environ[REPORTS_VARIABLE] = "1"  # ranks here take this process's environment
    sshd = subprocess.Popen([SSHD, "-D", "-e", *(word for option in _OPTIONS for word in ("-o", option))])

    stops: list[int] = []
    forward_signals(stops.append, lambda signum: send_to_those_that_catch(find_ranks(os.getpid()), signum))
    report_file = ReportFile()
    try:
        code, reason = _await_end(line, sshd.pid, first, stops, leftovers)
        _await_ranks()
        if reason:
            report_file.record(reason)
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
        raise DistributedError(
            f"{first}, which runs mpirun, was lost: its container or its host has ended, or the network to it is "
            "broken."
        )
    code, _, reason = last.partition(" ")
    return int(code), json.loads(reason)


def _await_ranks() -> None:
    deadline = time.monotonic() + _LEAVE_SECONDS
    while find_ranks(os.getpid()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    reset_inherited()
    parser = argparse.ArgumentParser(
        prog="python -m smddp.launch.mpi_host", description=__doc__ and __doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--first", required=True, help="the host that runs mpirun")
    given = parser.parse_args(arguments)
    start_log()
    try:
        code = serve(given.first)
    except DistributedError as error:
        tell_failure(error)
        return 1
    if code != 0:
        logger.log(
            logging.DEBUG if code == RESUMABLE else logging.ERROR, "mpirun on %s ended with code %d.", given.first, code
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
