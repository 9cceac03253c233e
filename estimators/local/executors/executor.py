"""The contract between the engine and what runs a host's program: processes here, containers elsewhere.

It knows nothing of training jobs: a host is a name, an address, a directory, and one program that is its PID 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


@dataclass(kw_only=True, slots=True, frozen=True)
class HostSpec:
    """One host, before it runs."""

    name: str
    """The platform's name for it, ``algo-1``."""
    address: str
    """Its own address in 127.0.0.0/8, which no other running host has."""
    ml_root: Path
    """The directory that the program is to see as ``/opt/ml``."""
    argv: tuple[str, ...]
    """The program and its arguments; the program is looked up in the environment's PATH."""
    environment: Mapping[str, str]
    """All that the program is to see; nothing else is inherited."""
    hosts: Mapping[str, str]
    """Name to address of every host of the job, this one included."""
    mounts: tuple[str, ...] = ()
    """Directories in ``ml_root`` at which the program is to see file systems that whoever starts the host serves."""


Serve = Callable[[tuple[int, ...]], None]
"""Begins to serve a host's ``mounts``: for each it is given a descriptor of /dev/fuse, which it has to close.

It is called before the program is started, as the search for the program may go through a mount. Who uses a mount waits
until it is served, or its descriptor closed, and can't even be killed. A mount ends with its host, or its descriptor.
"""


class HostProcess(Protocol):
    """A host that runs, or ran."""

    @property
    def pid(self) -> int:
        """The program's process ID, as this machine counts."""

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error, together, unbuffered; it ends when nothing of the host is left."""

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone, as the platform does; nothing if it has ended."""

    def kill(self) -> None:
        """End the program and everything that it started, at once."""

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (128 + the signal's number if one ended it), or None after ``timeout`` seconds."""


class Executor(Protocol):
    """Starts hosts."""

    @property
    def isolated(self) -> bool:
        """Whether a program sees its directory at ``/opt/ml`` and reaches the hosts by their names.

        If not, it gets ``SAGEMAKER_BASE_DIR``, and has to be told addresses instead of names.
        """

    @property
    def cannot_mount(self) -> str | None:
        """Why hosts can't have ``mounts`` here; None if they can."""

    def start(self, host: HostSpec, serve: Serve | None = None) -> HostProcess:
        """Start the host's program in ``/opt/ml/code``.

        Args:
            host: What to start.
            serve: Serves the host's mounts; only a host without any needs none. What it raises ends the host.

        Raises:
            HostStartError: If the program can't be started, with the reason.
        """


class HostStartError(RuntimeError):
    """A host's program could not be started."""
