"""Run each host of a job as a Slurm task, in an allocation that lasts as long as an attempt of the job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import PurePath, PurePosixPath
from types import TracebackType

from estimators.local.executors.executor import ClusterSpec, HostSpec
from estimators.local.executors.inherited import inherited_environment
from estimators.local.executors.slurm.allocation import Allocation
from estimators.local.executors.slurm.host import SlurmHost
from estimators.local.executors.slurm.settings import Slurm
from estimators.local.executors.supervised_process import SupervisedProgram
from smddp.cluster.environment import Environment

_ML_ROOT = PurePosixPath("/opt/ml")
_TRAIN = (sys.executable, "-m", "smddp.container")
_DELIVERED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that scancel, preemption and ``--signal`` send to a task."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""Variables by which Slurm names the job's devices on a node."""
_GRACE = ("SLURM_JOB_ID", "SLURM_CONF")
"""Variables by which a program that Slurm stops asks Slurm how long that may take."""
_OF_THIS_MACHINE = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TMPDIR")


class SlurmExecutor:
    """An `Executor` of Slurm tasks."""

    cannot_pipe = "its hosts are other machines"

    def __init__(self, settings: Slurm) -> None:
        self._settings = settings

    @property
    def runs_images(self) -> bool:
        """False: the program runs in this Python's environment, which the nodes share."""
        return False

    @property
    def no_opt_ml(self) -> str | None:
        """Why a program gets ``SAGEMAKER_BASE_DIR`` instead; None if it has ``/opt/ml``."""
        return None if self._settings.isolated else "the platform was given Slurm(isolated=False)"

    def find_image(self, wanted: str) -> str:
        """Return any image unchanged: the program runs in this Python's environment, which the nodes share."""
        return wanted

    def cluster(self, spec: ClusterSpec) -> SlurmCluster:
        """Prepare a cluster."""
        return SlurmCluster(spec, self._settings)


class SlurmCluster:
    """A `HostCluster` of Slurm nodes."""

    interface = ""
    """Empty: the nodes' interfaces have names of their own, so gloo and NCCL choose."""

    def __init__(self, spec: ClusterSpec, settings: Slurm) -> None:
        self._spec = spec
        self._settings = settings
        self._roots = {host: root.absolute() for host, root in spec.roots.items()}
        self._nodes: Mapping[str, str] = {}

    def known_as(self, host: str) -> str:
        """Return the host's name, or, without namespaces, its node's address."""
        return host if self._settings.isolated else self._addresses[host]

    def ml_root(self, host: str) -> PurePath:
        """Return ``/opt/ml``, or, without namespaces, the directory itself."""
        return _ML_ROOT if self._settings.isolated else self._roots[host]

    def start(self, host: HostSpec) -> SlurmHost:
        """Start the host's program; raise HostStartError with the reason if it can't be started."""
        root, isolated = str(self._roots[host.name]), self._settings.isolated
        base = {} if isolated else {"SAGEMAKER_BASE_DIR": root}
        inherited = {
            name: value for name, value in inherited_environment(hosts=1).items() if name not in _OF_THIS_MACHINE
        }
        program = SupervisedProgram(
            isolated=isolated,
            name=host.name,
            hosts=self._addresses,
            ml_root=root,
            argv=(*(host.entrypoint or _TRAIN), *host.arguments),
            environment={**inherited, "SMDDP_MASTER_PORT": str(self._port), **host.environment, **base},
            directory=f"{self.ml_root(host.name)}/{host.directory}",
            delivered=_DELIVERED,
            given=(*_DEVICES, *_GRACE),
        )
        return SlurmHost(program, self._allocation, self._nodes[host.name])

    def __enter__(self) -> SlurmCluster:
        self._allocation = Allocation(
            self._settings,
            name=self._spec.name,
            nodes=len(self._roots),
            cancelled=self._spec.cancelled,
            say=self._spec.say,
        )
        self._nodes = dict(zip(self._roots, self._allocation.addresses, strict=True))
        self._addresses = {host: self._allocation.addresses[node] for host, node in self._nodes.items()}
        self._port = Environment({"SLURM_JOB_ID": self._allocation.job}).port_of_job("SLURM_JOB_ID").value
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the nodes back."""
        self._allocation.release()
