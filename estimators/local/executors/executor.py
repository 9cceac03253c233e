"""The contract between the engine and what runs a host's program: processes here, containers elsewhere.

It knows nothing of training jobs: a host is a name, a directory, and one program that is its PID 1; a cluster is hosts
that know each other's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import TracebackType
from typing import BinaryIO, Protocol

from estimators.hosts.exit import Exit


@dataclass(kw_only=True, slots=True, frozen=True)
class ClusterSpec:
    """Hosts that belong together, before any of them runs."""

    name: str
    """What they are for, shown in the machine's list of processes or containers."""
    image: str
    """What `Executor.find_image` answered."""
    roots: Mapping[str, Path]
    """By the platform's name of each host, ``algo-1``: the directory that its program is to see as ``/opt/ml``."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Files and directories of this machine that every host is to see, too, by their places in it. Only containers can;
    what they write there belongs to this process's user in the end."""
    network_isolation: bool = False
    """Whether the hosts are to reach each other, and nothing else."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether the hosts are not wanted any more; asked while they are waited for."""
    say: Callable[[str], None] = lambda _: None
    """Is told, for the log, what is waited for."""


@dataclass(kw_only=True, slots=True, frozen=True)
class HostSpec:
    """One host of a cluster, before it runs."""

    name: str
    entrypoint: tuple[str, ...] = ()
    """The program to run instead of the image's, and its first arguments; empty: the image's."""
    default_command: tuple[str, ...] = ("train",)
    """What the image's own program is given before the arguments."""
    arguments: tuple[str, ...] = ()
    directory: str = "code"
    """Where the program runs, relative to /opt/ml; one of an image runs in the image's own directory."""
    environment: Mapping[str, str]
    """What the program is to see besides what the executor itself has to tell it, and in its stead."""


class HostProcess(Protocol):
    """A host that runs, or ran."""

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error, together, unbuffered; it ends when nothing of the host is left."""

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone, as the platform does; nothing if it has ended."""

    def kill(self) -> None:
        """End the program and everything that it started, at once."""

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how it ended, or None after ``timeout`` seconds."""


class HostCluster(Protocol):
    """The hosts of one attempt of a job and what they share. When its ``with`` block is left, nothing of them runs.

    What the programs wrote belongs to this process's user by then, whoever they ran as.
    """

    @property
    def interface(self) -> str:
        """The network interface on which the hosts reach each other, as their programs see it."""

    def known_as(self, host: str) -> str:
        """Return the name by which the hosts reach this one."""

    def ml_root(self, host: str) -> PurePath:
        """Return where a host's program finds its directory: ``/opt/ml``, if that can be had."""

    def start(self, host: HostSpec) -> HostProcess:
        """Start the host's program.

        Raises:
            HostStartError: If the program can't be started, with the reason.
        """

    def __enter__(self) -> HostCluster: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all that runs.

        Raises:
            HandOverError: What the programs wrote does not belong to this process's user, and no error is on its way.
        """


class Executor(Protocol):
    """Runs clusters."""

    @property
    def cannot_pipe(self) -> str | None:
        """Why a named pipe of this machine does not reach hosts; None if it does."""

    @property
    def runs_images(self) -> bool:
        """Whether a job's image is run; if not, its program is run as one of this Python's environment."""

    @property
    def no_opt_ml(self) -> str | None:
        """Why a program does not see its directory at ``/opt/ml``; None if it does."""

    def find_image(self, wanted: str) -> str:
        """Return what hosts are to run for a job's image, in the executor's own terms.

        Raises:
            NoImageError: Nothing here stands for it; the message says what to do.
        """

    def cluster(self, spec: ClusterSpec) -> HostCluster:
        """Prepare a cluster; entering it makes what the hosts share."""


class HostStartError(RuntimeError):
    """A host's program, or what it needs, could not be started."""


class NoNamespacesError(HostStartError):
    """This machine lets a program have no namespaces of its own, now and later.

    Args:
        message: What could not be started, with the reason.
        why: The reason alone.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class ExecutorError(HostStartError):
    """It is the fault of neither the program nor the request, but of what runs hosts here."""


class HandOverError(RuntimeError):
    """What the hosts wrote as other users could not be given to this process's user."""


class NoImageError(LookupError):
    """Nothing on this machine stands for a job's image."""
