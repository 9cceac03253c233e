"""Run each host of a job as processes of this machine: no Docker, no root, and nothing that outlives this process.

Where user namespaces are allowed, a host has its own ``/opt/ml``, host name, ``/etc/hosts`` and process IDs. Where they
are barred (some containers, Ubuntu's AppArmor), the program gets ``SAGEMAKER_BASE_DIR`` instead, and a warning says so.
In both cases a supervisor process starts and ends the program: see ``host_supervisor.py``. Each cluster of this process
has a network of its own in 127.0.0.0/8, so that hosts of different jobs do not share an address.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import random
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath, PurePosixPath
from types import TracebackType

from estimators.local.directory_reaper_process import Lifeline
from estimators.local.executors.executor import ClusterSpec, ExecutorError, HostSpec, NoNamespacesError
from estimators.local.executors.supervised_process import SupervisedProcess, SupervisedProgram
from estimators.local.executors.warm_hosts import WarmHosts
from smddp.cluster.gpus import count_gpus, host_gpus, no_gpus
from smddp.launch.ports import hold_port

logger = logging.getLogger(__name__)

_ML_ROOT = PurePosixPath("/opt/ml")
_TEMPORARY = "tmp"
"""Directory of temporary files for a program with its tree at /opt/ml: like a container's, they go away with it."""
INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "CUDA_*",
    "NVIDIA_*",
    "PIP_*",
    "SSL_CERT_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Variables for programs, libraries and devices, and for ``requirements.txt`` to reach a package index."""
OF_THIS_PYTHON = ("PYTHONPATH", "VIRTUAL_ENV")
"""Variables that lead to the packages of this Python: another one must not find them."""

# Guards `_networks`, so that no two clusters have one network. Held for a search, and no other lock is taken under it.
_lock = threading.Lock()
_networks: set[int] = set()
"""The networks of the clusters that are open: 0 is 127.1.0.0/24, the last one 127.255.255.0/24."""
_NETWORKS = 255 * 256


class ProcessExecutor:
    """An `Executor` of plain processes.

    ``isolated`` None tries namespaces once, and warns if they are barred; HostStartError if that fails for another
    reason. ``lifeline`` belongs to the directory that the hosts write in, and stays open until each has ended.
    ``open_files`` is the programs' soft limit; None: this process's. ``python`` runs the hosts. ``warm`` forks training
    hosts; None starts each one as a new Python.
    """

    def __init__(
        self,
        *,
        isolated: bool | None = None,
        lifeline: Lifeline | None = None,
        open_files: int | None = None,
        python: str = sys.executable,
        warm: WarmHosts | None = None,
    ) -> None:
        self._warm = warm
        self._python = python
        self._lifeline = lifeline
        self._open_files = open_files
        self._isolated = _namespaces_allowed() if isolated is None else isolated

    @property
    def isolated(self) -> bool:
        """Whether a program sees its directory at ``/opt/ml``, and reaches the hosts by their names.

        If not, it gets ``SAGEMAKER_BASE_DIR``, and hosts are known by their addresses.
        """
        return self._isolated

    @property
    def cannot_pipe(self) -> None:
        """None: named pipes reach the hosts."""

    @property
    def python(self) -> str:
        """The Python in whose environment the program runs."""
        return self._python

    @property
    def no_opt_ml(self) -> str | None:
        """Why a program gets ``SAGEMAKER_BASE_DIR`` instead; None if it has ``/opt/ml``."""
        return None if self._isolated else "user namespaces are barred on this machine"

    def find_image(self, wanted: str) -> str:
        """Return any image unchanged: the program runs in the environment of `python`."""
        return wanted

    def cluster(self, spec: ClusterSpec) -> ProcessCluster:
        """Prepare a cluster."""
        return ProcessCluster(
            spec,
            isolated=self._isolated,
            lifeline=self._lifeline,
            open_files=self._open_files,
            python=self._python,
            warm=self._warm,
        )


class ProcessCluster:
    """A `HostCluster` of plain processes.

    ``lifeline`` belongs to the directory that they write in. ``open_files`` is the programs' soft limit; None: this
    process's. ``python`` runs the hosts, which ``warm`` forks.
    """

    interface = "lo"

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        isolated: bool,
        lifeline: Lifeline | None = None,
        open_files: int | None = None,
        python: str = sys.executable,
        warm: WarmHosts | None = None,
    ) -> None:
        self._python = python
        self._warm = warm
        self._open_files = open_files
        self._keep = () if lifeline is None else (lifeline.fileno(),)
        self._roots = {host: root.absolute() for host, root in spec.roots.items()}
        self._isolated = isolated
        self._addresses: Mapping[str, str] = {}
        self._gpus = _gpus_of_hosts(spec)
        self._environment = {
            **inherited_environment(python, hosts=len(spec.roots)),
            # Never a path of this machine, which may be longer than the 108 bytes of a socket's path.
            **({"TMPDIR": str(_ML_ROOT / _TEMPORARY)} if isolated else {}),
        }

    @property
    def addresses(self) -> Mapping[str, str]:
        """Each host's own address in 127.0.0.0/8, while the cluster is open."""
        return self._addresses

    @property
    def master_port(self) -> int:
        """The port for the hosts' rendezvous, which is held while the cluster is open."""
        return int(self._held_port.getsockname()[1])

    def known_as(self, host: str) -> str:
        """Return the host's name, or, without namespaces, its address."""
        return host if self._isolated else self._addresses[host]

    def ml_root(self, host: str) -> PurePath:
        """Return ``/opt/ml``, or, without namespaces, the directory itself."""
        return _ML_ROOT if self._isolated else self._roots[host]

    def start(self, host: HostSpec) -> SupervisedProcess:
        """Start the host's program; raise HostStartError with the reason if it can't be started."""
        root = self._roots[host.name]
        if self._isolated:
            (root / _TEMPORARY).mkdir(exist_ok=True)
        base = {} if self._isolated else {"SAGEMAKER_BASE_DIR": str(root)}
        return SupervisedProcess(
            SupervisedProgram(
                isolated=self._isolated,
                name=host.name,
                hosts={self.known_as(name): address for name, address in self._addresses.items()},
                ml_root=str(root),
                argv=(*(host.entrypoint or train(self._python)), *host.arguments),
                environment={
                    **self._environment,
                    "SMDDP_MASTER_PORT": str(self.master_port),
                    **self._gpus[host.name],
                    **host.environment,
                    **base,
                },
                directory=f"{self.ml_root(host.name)}/{host.directory}",
                open_files=self._open_files,
            ),
            keep=self._keep,
            warm=None if host.entrypoint else self._warm,
        )

    def __enter__(self) -> ProcessCluster:
        self._network = take_network()
        self._addresses = addresses_in(self._network, self._roots)
        self._held_port = hold_port()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the network and the port back. Each host ends by itself, or with this process."""
        with _lock:
            _networks.discard(self._network)
        self._held_port.close()


def _namespaces_allowed() -> bool:
    why = why_no_namespaces()
    if why is not None:
        logger.warning(
            "jobs run without an /opt/ml and host names of their own, with SAGEMAKER_BASE_DIR and loopback "
            "addresses instead, because user namespaces are barred here (%s)",
            why,
        )
    return why is None


def why_no_namespaces(*, private_network: bool = False) -> str | None:
    """Return why a program can't have its own namespaces here; None if it can.

    ``private_network`` asks for its own network, too. Raise HostStartError if the probe fails for another reason.
    """
    with tempfile.TemporaryDirectory(prefix="smddp-probe-") as directory:
        program = SupervisedProgram(
            name="probe",
            argv=("true",),
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            directory="/",
            isolated=True,
            ml_root=directory,
            private_network=private_network,
        )
        try:
            process = SupervisedProcess(program)
        except NoNamespacesError as error:
            return error.why
        with process.output:
            process.wait()
    return None


def train(python: str) -> tuple[str, ...]:
    """Return the command that a training image would run as ``train``."""
    return (python, "-m", "smddp.container")


def inherited_environment(python: str, *, hosts: int) -> dict[str, str]:
    """Return the variables of a host's program that is a process of this machine: only those that any program needs.

    They never include AWS credentials, or the paths of their files: a job must not reach the user's account. The
    commands `python` and `torchrun` are those of ``python``, which runs the host.

    ``hosts`` share this machine's cores. Without a limit, the threads of each host would take all cores and wait for
    each other: a step of a small network takes twenty times as long.
    """
    patterns = (*INHERITED, *OF_THIS_PYTHON) if python == sys.executable else INHERITED
    inherited = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // hosts)),
        **inherited,
        "PATH": os.pathsep.join([str(Path(python).parent), inherited.get("PATH", os.defpath)]),
    }


def _gpus_of_hosts(spec: ClusterSpec) -> dict[str, dict[str, str]]:
    """Return for each host the variables that limit it to its GPUs."""
    gpus = count_gpus(os.environ)
    sharing = [host for host in spec.roots if host not in spec.without_gpus]
    shares = host_gpus(len(sharing), gpus, os.environ)
    return {**dict.fromkeys(spec.without_gpus, no_gpus(gpus)), **dict(zip(sharing, shares, strict=True))}


def take_network() -> int:
    """Take a network that no open cluster of this process has; raise ExecutorError if there is none.

    It is random, so that the clusters of another process rarely have the same.
    """
    with _lock:
        free = [number for number in range(_NETWORKS) if number not in _networks]
        if not free:
            raise ExecutorError(f"{_NETWORKS:,} jobs run, and each needs a network of its own in 127.0.0.0/8")
        number = random.choice(free)  # noqa: S311  # not a secret
        _networks.add(number)
        return number


def addresses_in(network: int, hosts: Iterable[str]) -> dict[str, str]:
    """Return an address in a network for each host, 254 at most."""
    first, second = divmod(network, 256)
    return {host: f"127.{first + 1}.{second}.{number}" for number, host in enumerate(hosts, start=1)}
