"""The contract between the engine and the executors that run a host's program, as processes or in containers.

It knows nothing of training jobs: a host is a name, a directory, and one program that is its PID 1; a cluster is hosts
that know each other's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import TracebackType
from typing import BinaryIO, Protocol

from estimators.hosts.failure import Exit


@dataclass(kw_only=True, slots=True, frozen=True)
class ClusterSpec:
    """The hosts of a cluster, before any of them runs."""

    name: str
    """Purpose of the cluster, shown in the machine's list of processes or containers."""
    image: str
    """The result of `Executor.find_image`."""
    roots: Mapping[str, Path]
    """The directory that a host's program sees as ``/opt/ml``, by the platform's name of the host, such as
    ``algo-1``."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """More files and directories of this machine, by the path at which every host sees them. Only containers support
    them; in the end this process's user owns what hosts wrote there."""
    network_isolation: bool = False
    """Whether the hosts reach each other and nothing else."""
    without_gpus: frozenset[str] = frozenset()
    """Hosts of a type without GPUs: where hosts are processes, they see none of this machine's. The others share them.
    """
    cancelled: Callable[[], bool] = lambda: False
    """Whether the hosts are no longer wanted; asked while the cluster waits for them."""
    say: Callable[[str], None] = lambda _: None
    """Writes a line about the wait into the log."""


@dataclass(kw_only=True, slots=True, frozen=True)
class HostSpec:
    """One host of a cluster, before it runs."""

    name: str
    entrypoint: tuple[str, ...] = ()
    """Program that replaces the image's, and its first arguments; empty: the image's own."""
    default_command: tuple[str, ...] = ("train",)
    """Words for the image's own program, before the arguments. An executor of processes has no image: it runs smddp's
    ``train`` in place of both."""
    arguments: tuple[str, ...] = ()
    directory: str = "code"
    """Working directory, relative to /opt/ml; an image's own program runs in the image's directory."""
    environment: Mapping[str, str]
    """Variables of the program, which override the executor's."""


class HostProcess(Protocol):
    """A host that runs, or ran."""

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error together, unbuffered; ends when nothing of the host is left."""

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone, as the platform does; do nothing if it has ended."""

    def kill(self) -> None:
        """End the program and every process that it started, at once."""

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how it ended, or None after ``timeout`` seconds."""


class HostCluster(Protocol):
    """The hosts of one attempt of a job, and the resources they share. After the ``with`` block, nothing of them runs.

    By then this process's user owns all files that the programs wrote, whichever user ran them.
    """

    @property
    def interface(self) -> str:
        """The network interface on which the hosts reach each other, as their programs see it."""

    def known_as(self, host: str) -> str:
        """Return the name by which the other hosts reach this host."""

    def ml_root(self, host: str) -> PurePath:
        """Return the path of a host's directory as its program sees it: ``/opt/ml``, if possible."""

    def start(self, host: HostSpec) -> HostProcess:
        """Start the host's program; raise HostStartError with the reason if it can't be started."""

    def __enter__(self) -> HostCluster: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all hosts.

        Raise HandOverError if the programs' files can't be given to this process's user, unless another error is being
        raised.
        """


class Executor(Protocol):
    """Starts a job's hosts, as processes or containers: what differs between processes, Docker and Slurm."""

    @property
    def cannot_pipe(self) -> str | None:
        """Why a named pipe of this machine does not reach hosts; None if it does."""

    @property
    def python(self) -> str | None:
        """The Python in whose environment a job's program runs in place of its image; None if images are run."""

    @property
    def no_opt_ml(self) -> str | None:
        """Why a program does not see its directory at ``/opt/ml``; None if it does."""

    def find_image(self, wanted: str) -> str:
        """Return the executor's own name of a job's image; raise NoImageError, with a remedy, if it has none."""

    def cluster(self, spec: ClusterSpec) -> HostCluster:
        """Prepare a cluster; entering it makes the resources that the hosts share."""


class HostStartError(RuntimeError):
    """A host's program, or a resource that it needs, could not be started."""


class NoNamespacesError(HostStartError):
    """This machine does not allow programs their own namespaces, now or later; ``why`` is the bare reason."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class ExecutorError(HostStartError):
    """The executor is at fault, not the program or the request."""


class HandOverError(RuntimeError):
    """This process's user could not become the owner of files that the hosts wrote as other users."""


class NoImageError(LookupError):
    """No image on this machine is mapped to a job's image."""
