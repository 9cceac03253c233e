"""Run each host of a job as a Slurm task, in an allocation that lasts as long as an attempt of the job.

A host is an srun process here, and a supervisor on the node, which starts and ends the program.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import PurePath, PurePosixPath
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

from estimators.local.executors.executor import ClusterSpec, ExecutorError, HostSpec
from estimators.local.executors.process import inherited_environment, train
from estimators.local.executors.settings import Slurm
from estimators.local.executors.slurm import slurm_program
from estimators.local.executors.slurm.allocation import Allocation, options_for_host
from estimators.local.executors.supervised_process import (
    START_SECONDS,
    SUPERVISOR,
    Supervised,
    SupervisedProgram,
    not_started,
)
from smddp.cluster.strict_variables import Environment
from smddp.process.exit_codes import as_shell

logger = logging.getLogger(__name__)

_ML_ROOT = PurePosixPath("/opt/ml")
_KILL_SECONDS = 15.0
"""Time limit in seconds for a node to end a killed program; a lost node does not answer, and srun waits for it."""
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
    def python(self) -> str:
        """This Python, whose environment the nodes share."""
        return sys.executable

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
        """Return ``/opt/ml``, or, without namespaces, the host's directory itself."""
        return _ML_ROOT if self._settings.isolated else self._roots[host]

    def start(self, host: HostSpec) -> SlurmHost:
        """Start the host's program; raise HostStartError with the reason if it can't be started."""
        root, isolated = str(self._roots[host.name]), self._settings.isolated
        base = {} if isolated else {"SAGEMAKER_BASE_DIR": root}
        inherited = {
            name: value
            for name, value in inherited_environment(sys.executable, hosts=1).items()
            if name not in _OF_THIS_MACHINE
        }
        program = SupervisedProgram(
            isolated=isolated,
            name=host.name,
            hosts=self._addresses,
            ml_root=root,
            argv=(*(host.entrypoint or train(sys.executable)), *host.arguments),
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


class SlurmHost(Supervised):
    """A `HostProcess` on a node of an allocation; raises HostStartError with the reason if it can't be started."""

    def __init__(self, program: SupervisedProgram, allocation: Allocation, node: str) -> None:
        self._allocation = allocation
        self._words: deque[str] = deque(maxlen=20)
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        # The standard error of srun carries the supervisor's status; the program writes both its streams to standard
        # output.
        srun = subprocess.Popen(
            [
                slurm_program.program("srun"),
                *options_for_host(allocation, node),
                *(sys.executable, "-I", "-S", SUPERVISOR, "2"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=slurm_program.environment(),
            cwd="/",
            bufsize=0,
        )
        assert srun.stdout is not None
        assert srun.stderr is not None
        threading.Thread(target=self._read_status, args=(srun.stderr, answers), daemon=True).start()
        super().__init__(program, srun, cast(BinaryIO, srun.stdout))
        try:
            answer = answers.get(timeout=START_SECONDS)
        except BaseException as error:
            self._abandon()
            if isinstance(error, queue.Empty):
                raise not_started(program, f"it did not run within {START_SECONDS:g} seconds on {node}") from error
            raise
        if "pid" not in answer:
            self._output.close()
            ended = self.wait()
            assert ended is not None
            if "error" not in answer:
                # The supervisor said nothing: Slurm has ended the job, or srun could not start it.
                words = " ".join(self._words) or "it does not say why"
                if ended.lost is not None:
                    raise ExecutorError(f"{program.name} was lost: {ended.lost} (srun on {node}: {words})")
                raise ExecutorError(f"{program.name}: srun started nothing on {node}: {words}")
            remedy = " Give Slurm(isolated=False)." if answer.get("no_namespaces") else ""
            raise not_started(program, f"on {node}: {answer['error']}.{remedy}".replace("..", "."))

    def kill(self) -> None:
        """End the program and every process that it started, at once."""
        super().kill()
        late = threading.Timer(_KILL_SECONDS, self._process.kill)
        late.daemon = True
        late.start()

    def _loss(self, returncode: int) -> str | None:
        if returncode == 0:
            return None
        try:
            lost = self._allocation.loss()
        except ExecutorError as error:
            lost = f"Slurm does not say: {error}"
        if lost is None and as_shell(returncode) == 128 + signal.SIGKILL:
            return "its first process was killed from outside"
        return lost

    def _read_status(self, status: IO[bytes], answers: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Find the supervisor's answers among srun's lines, and log all other lines."""
        with status:
            for line in status:
                answer = None
                with contextlib.suppress(ValueError):
                    answer = json.loads(line)
                if isinstance(answer, dict):
                    answers.put(answer)
                else:
                    self._words.append(line.decode(errors="replace").strip())
                    logger.info("%s", self._words[-1])
        answers.put({})  # ends the wait if no answer has come
