"""The first host's connections to the other hosts on which it starts ranks, open as long as the job runs.

A connection, called a line, is an ssh session to ``smddp.launch.mpi_host``. If it opens, the host answers; if it
breaks, the host is lost; its last message is how the job ended. No text from the job is part of a remote command,
because a shell there runs it.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

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
            "between hosts. Use containers as hosts, one instance, or the distribution torch_distributed."
        )


def connect(hosts: Sequence[str]) -> list[SshConnection]:
    """Open a line to each host; raise DistributedError, with its name, if one does not answer in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    connections = []
    for host in hosts:
        refuse_loopback(host)
        logger.info("Waiting for %s to answer.", host)
        connections.append(SshConnection(host, deadline))
    return connections
