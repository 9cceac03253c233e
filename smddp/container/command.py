"""Chooses the program that runs the entry point: python, a shell, torchrun or mpirun, in the toolkit's order.

The order is mpi, pytorch_ddp, torch_distributed, smdataparallel, parameter server, plain. If the toolkit would silently
train something else than requested, this raises an error.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smddp.cluster.sagemaker import MASTER_PORT
from smddp.container.contract import Contract
from smddp.container.environment import user_arguments
from smddp.container.job_process import SHELL
from smddp.container.source import fault_under_torchrun, is_package, top_files
from smddp.errors import JobError

logger = logging.getLogger(__name__)

_PROCESSES_PER_CPU = 4
_FEW_PROCESSES = 64
"""The number of ranks that a host always allows, even with few CPUs."""

PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
"""The hyperparameter with the number of ranks on each host, for torchrun as well; AWS's toolkit reads it, too."""
PROCESSES_IN_ALL = "sagemaker_mpi_num_processes"
"""The hyperparameter with the number of ranks on all hosts, if smaller; for mpirun only."""

_REFUSED = {
    "sagemaker_multi_worker_mirrored_strategy_enabled": "The multi-worker mirrored strategy",
    "sagemaker_pytorch_xla_multi_worker_enabled": "PyTorch/XLA workers",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """The command that the container starts."""

    words: tuple[str, ...]
    """The command line, without the interpreter unless it is a shell."""
    through_shell: bool = False
    """Whether it is a shell, which must be signalled together with its children."""
    package: bool = False
    """Whether the code is a Python package, which is installed before it runs."""
    many: bool = False
    """Whether several ranks write to one standard error."""
    ranks_of_torchrun: int = 0
    """How many ranks torchrun starts on this host; 0 without torchrun."""

    def line(self, python: str) -> list[str]:
        """Return the whole command line, with the job's interpreter."""
        return list(self.words) if self.through_shell else [python, *self.words]


def choose_command(contract: Contract, entry_point: str, environ: Mapping[str, str], *, gpus: int) -> Command:
    """Choose the launcher and its command line; raise JobError if the requested distribution is not possible here.

    ``gpus`` is the number that the job can use; of ``environ``, SMDDP_MASTER_PORT and SMDDP_MAX_RESTARTS are read.
    """
    package = is_package(entry_point, top_files(contract.code_dir))
    arguments = user_arguments(contract.hyperparameters)
    launcher = _launcher(contract.framework) if contract.current_group in contract.distribution_groups else None
    restarts, port = _max_restarts(environ), _master_port(environ)
    if restarts and launcher in (None, "mpi"):
        logger.warning("SMDDP_MAX_RESTARTS=%d does nothing here: only ranks of torchrun's can be restarted.", restarts)
    if launcher == "torchrun" and (fault := fault_under_torchrun(entry_point, package=package)):
        raise JobError(fault)
    is_shell = not package and not entry_point.endswith(".py")
    if launcher is None and is_shell:
        return Command(words=(*SHELL, entry_point, *arguments), through_shell=True)
    program = [entry_point]  # the same for python and for the launchers
    if is_shell:
        program = ["-m", "smddp.container.job_process", entry_point]
    elif package:
        program = ["-m", entry_point.removesuffix(".py").replace("/", ".")]
    if launcher is None:
        return Command(words=(*program, *arguments), package=package)
    processes = 1 if launcher == "parameter_server" else _processes_per_host(contract.framework, gpus)
    ranks = processes * len(contract.distribution_hosts)
    if launcher == "mpi":
        ranks = _mpi_ranks(contract.framework, ranks)
        if contract.current_host != contract.master_host:
            return Command(words=("-m", "smddp.launch.mpi_host", "--first", contract.master_host), package=package)
        words = _mpirun(contract, processes, ranks)
    else:
        words = _torchrun(contract, processes, port, restarts)
    return Command(
        words=("-m", *words, *program, *arguments),
        package=package,
        many=ranks > 1,
        ranks_of_torchrun=0 if launcher == "mpi" else processes,
    )


def check_settings(environ: Mapping[str, str]) -> None:
    """Check the variables SMDDP_MAX_RESTARTS and SMDDP_MASTER_PORT; raise JobError if the container refuses one."""
    _max_restarts(environ)
    _master_port(environ)


def check_processes(name: str, given: object) -> None:
    """Raise JobError unless a hyperparameter is a number of processes, 1 or more."""
    if not re.fullmatch(r"[1-9]\d*", str(given)):
        raise JobError(f"{name}={given!r} must be a whole number, 1 or more.")


def _launcher(framework: Mapping[str, Any]) -> str | None:
    """Return the launcher of the ranks; None for a plain script.

    It is "mpi", or "torchrun", which also runs "smdistributed" and "parameter_server".
    """
    for name, what in _REFUSED.items():
        if framework.get(name):
            raise JobError(f"{what} ({name}) are not for PyTorch here: use the distribution torch_distributed.")
    if framework.get("sagemaker_mpi_enabled"):
        return "mpi"
    if framework.get("sagemaker_torch_distributed_enabled") and not framework.get("sagemaker_pytorch_ddp_enabled"):
        return "torchrun"
    if framework.get("sagemaker_pytorch_ddp_enabled") or framework.get("sagemaker_distributed_dataparallel_enabled"):
        if importlib.util.find_spec("smdistributed") is None:
            logger.warning(
                "SMDDP WAS ASKED FOR AND IS NOT HERE: smdistributed.dataparallel can't be imported in this image. "
                "The ranks start through torchrun and all-reduce over NCCL (GPUs) or gloo (CPUs)."
            )
        return "smdistributed"
    if framework.get("sagemaker_parameter_server_enabled"):
        logger.warning(
            "PyTorch has no parameter server of its own: this starts one rank a host, which a script can make servers "
            "and workers with torch.distributed.rpc. AWS's images start the script once a host, and connect nothing."
        )
        return "parameter_server"
    return None


def _processes_per_host(framework: Mapping[str, Any], gpus: int) -> int:
    given = framework.get(PROCESSES_PER_HOST) or gpus or 1
    check_processes(PROCESSES_PER_HOST, given)
    most = _most_processes()
    if len(str(given)) > 9 or int(given) > most:
        raise JobError(
            f"{PROCESSES_PER_HOST}={str(given)[:20]} is more than this host takes: at most {most}. "
            "Ask for fewer, or for more instances."
        )
    return int(given)


def _mpi_ranks(framework: Mapping[str, Any], most: int) -> int:
    """Return the number of ranks for mpirun: all that the hosts take, or fewer if the job asks for it."""
    given = framework.get(PROCESSES_IN_ALL) or most
    check_processes(PROCESSES_IN_ALL, given)
    if len(str(given)) > 9 or int(given) > most:
        raise JobError(
            f"{PROCESSES_IN_ALL}={str(given)[:20]} is more than the job's hosts take together: {most}. Ask for fewer, "
            f"or for more on each host by {PROCESSES_PER_HOST}."
        )
    return int(given)


def _most_processes() -> int:
    """Return the most ranks of a host: enough for every sensible layout, and far below a host's limits."""
    return max(_FEW_PROCESSES, _PROCESSES_PER_CPU * (os.cpu_count() or 1))


def _max_restarts(environ: Mapping[str, str]) -> int:
    given = environ.get("SMDDP_MAX_RESTARTS", "0")
    if not re.fullmatch(r"\d+", given):
        raise JobError(f"SMDDP_MAX_RESTARTS={given!r} must be a whole number, 0 or more.")
    return int(given)


def _master_port(environ: Mapping[str, str]) -> str | None:
    given = environ.get("SMDDP_MASTER_PORT")
    if given is not None and not (re.fullmatch(r"[1-9]\d{0,4}", given) and int(given) < 2**16):
        raise JobError(f"SMDDP_MASTER_PORT={given!r} must be a TCP port, 1 to 65535.")
    return given


def _torchrun(contract: Contract, processes: int, port: str | None, restarts: int) -> list[str]:
    hosts = contract.distribution_hosts
    words = ["smddp.launch.torchrun", "--nnodes", str(len(hosts)), "--nproc-per-node", str(processes)]
    if len(hosts) > 1:
        words += ["--node-rank", str(hosts.index(contract.current_host)), "--master-addr", contract.master_host]
        words += ["--master-port", port or str(MASTER_PORT)]
    elif port is not None:
        words += ["--master-port", port]
    return [*words, "--max-restarts", str(restarts)] if restarts else words


def _mpirun(contract: Contract, processes: int, ranks: int) -> list[str]:
    words = ["smddp.launch.mpirun", "--processes", str(processes)]
    hosts = contract.distribution_hosts
    if ranks < processes * len(hosts):
        words += ["--ranks", str(ranks)]
    if len(hosts) > 1:
        words += [
            "--hosts",
            ",".join([contract.master_host, *(host for host in hosts if host != contract.master_host)]),
        ]
        interface = str(contract.resources.get("network_interface_name", ""))
        if Path("/sys/class/net", interface or "-").exists():
            words += ["--interface", interface]
    options = str(contract.framework.get("sagemaker_mpi_custom_mpi_options", "")).split()
    return [*words, *(f"--option={option}" for option in options)]
