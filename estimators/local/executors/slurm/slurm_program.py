"""Find, run and read Slurm's own programs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

from estimators.local.executors.executor import ExecutorError
from smddp.cluster.slurm import expand_nodes
from smddp.cluster.strict_variables import EnvValue

SECONDS = 30.0
"""Time limit in seconds for Slurm's answer; a controller under load takes some."""


def program(name: str) -> str:
    """Return the path of one of Slurm's programs; raise ExecutorError if it is missing."""
    path = shutil.which(name)
    if path is None:
        raise ExecutorError(f"there is no {name} in PATH: jobs on Slurm are started from a machine that submits to it")
    return path


def environment() -> dict[str, str]:
    """Return this process's environment, without the variables of an allocation that it may itself run in."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**own, **{name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}}


def cancel(job: str) -> None:
    """End a job if it still runs; raise ExecutorError if Slurm does not answer."""
    _run("scancel", job)


def scontrol(*words: str) -> str:
    """Return the output of scontrol; raise ExecutorError if Slurm does not answer."""
    return _run("scontrol", *words)


def _run(name: str, *words: str) -> str:
    command = [program(name), *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment())
    except subprocess.TimeoutExpired:
        raise ExecutorError(f"Slurm did not answer {name} {' '.join(words)} within {SECONDS:g} s") from None
    if ended.returncode != 0:
        said = " ".join((ended.stderr or ended.stdout).split())
        raise ExecutorError(f"{name} {' '.join(words)} failed: {said}")
    return ended.stdout


def job_state(job: str) -> str:
    """Return Slurm's state of a job, such as RUNNING or PREEMPTED, with Slurm's reason if there is one."""
    fields = dict(re.findall(r"\b(JobState|Reason)=(\S+)", scontrol("show", "job", job, "--oneliner")))
    reason = fields.get("Reason", "None")
    return fields["JobState"] if reason == "None" else f"{fields['JobState']} ({reason})"


def own_address() -> str:
    """Return the address from which this machine reaches Slurm's first node.

    Raise ExecutorError if Slurm does not answer or has no nodes, or the node can't be reached.
    """
    found = re.search(r"\bNodeAddr=(\S+)", scontrol("show", "node", "--oneliner"))
    if found is None:
        raise ExecutorError("Slurm has no nodes: see sinfo")
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as way:
            way.connect((found[1], 9))  # nothing is sent
            return str(way.getsockname()[0])
    except OSError as error:
        raise ExecutorError(
            f"{found[1]}, a node of Slurm's, can't be reached: {error}; give Slurm(address=…)"
        ) from error


def addresses(listed: str) -> Mapping[str, str]:
    """Return the addresses of a Slurm node list by node name, in its order; raise ExecutorError if one is unknown."""
    text = scontrol("show", "node", listed, "--oneliner")
    known = dict(re.findall(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)", text))
    names = expand_nodes(EnvValue(listed, f"Slurm's list {listed}"))
    try:
        return {name: socket.gethostbyname(known[name]) for name in names}
    except (KeyError, OSError) as error:
        raise ExecutorError(f"the address of a node of {listed} is not known: {error}") from error
