"""The hosts that the first one starts ranks on, as it sees them: a line to each, open as long as the job runs.

A line is an ssh connection. That it is made says that the host answers; that it breaks, that the host was lost; what is
sent over it last, how the job ended. ``smddp.launch.mpi_host`` is the other end. No word of the job's is part of a
remote command: those go through a shell there.
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
"""Hosts of a job are made for it: nobody can know their keys before, or be asked about them."""

LINE = "/tmp/smddp-mpi-line"  # noqa: S108, the same on all hosts
"""The pipe in which a host hears what is sent to it."""

WAIT_SECONDS = 300.0
"""How long a host may take to answer; as long as for its name."""

_RETRY_SECONDS = 0.5
_FAREWELL_SECONDS = 5.0


class SshConnection:
    """An open connection to one host.

    Raises:
        DistributedError: The host did not answer in time.
    """

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
        """Whether the host is still there."""
        return self._ssh.poll() is None

    def close(self, code: int, reason: str = "") -> None:
        """Tell the host how the job ended: the code, and the reason as JSON, in one line."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._ssh.communicate(f"{code} {json.dumps(reason)}\n".encode(), timeout=_FAREWELL_SECONDS)
        self._ssh.kill()
        self._ssh.wait()


def refuse_loopback(host: str) -> None:
    """Refuse a host that is this machine under another name: ssh would lead to the machine's own daemon.

    Raises:
        DistributedError: It is, or it has no address.
    """
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
    """Open a line to each host, waiting until it answers.

    Raises:
        DistributedError: A host did not; it is named.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    connections = []
    for host in hosts:
        refuse_loopback(host)
        logger.info("Waiting for %s to answer.", host)
        connections.append(SshConnection(host, deadline))
    return connections
