"""Slurm's variables in a process that srun started: SLURM_PROCID and others; a step's values go before the job's.

A shell in an allocation (salloc), or a batch script before its first srun, is one plain process, for any number of
allocated tasks. Slurm gives no master address: without MASTER_ADDR and MASTER_PORT it is the step's first node, and the
port is derived from the ids of job and step (see :meth:`~smddp.cluster.strict_variables.Environment.port_of_job`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from smddp.cluster.strict_variables import Environment, EnvValue, EnvValues
from smddp.display_text import counted
from smddp.errors import ClusterError

_FIRST_RESERVED_STEP = 0xFFFF_FFF0
"""Slurm's own steps, such as the batch script and the interactive shell, are numbered from here (slurm.h)."""

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def started(environment: Environment) -> bool:
    """Return whether srun started this process."""
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment:
        return False
    return environment.integer("SLURM_STEP_ID", beside="SLURM_PROCID").value < _FIRST_RESERVED_STEP


def rank_and_size(environment: Environment) -> tuple[EnvValue[int], EnvValue[int]]:
    """Return this task's number and the step's number of tasks."""
    return (
        environment.integer("SLURM_PROCID", beside="SLURM_STEP_ID"),
        environment.integer("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", beside="SLURM_PROCID", minimum=1),
    )


def read(environment: Environment) -> EnvValues:
    """Return the cluster's values as srun sets them: one rank per task."""
    rank, world_size = rank_and_size(environment)
    node_rank = environment.integer("SLURM_NODEID", beside="SLURM_PROCID")
    node_count = environment.integer("SLURM_STEP_NUM_NODES", "SLURM_NNODES", beside="SLURM_PROCID", minimum=1)
    listed = environment.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", beside="SLURM_PROCID")
    hosts = EnvValue(expand_nodes(listed), listed.source)
    return EnvValues(
        launcher=EnvValue("slurm", environment.show("SLURM_STEP_ID")),
        rank=rank,
        local_rank=environment.integer("SLURM_LOCALID", beside="SLURM_PROCID"),
        world_size=world_size,
        local_world_size=_local_world_size(environment, world_size, node_rank, node_count),
        node_rank=node_rank,
        node_count=node_count,
        hosts=hosts,
        master_addr=environment.master_addr(EnvValue(hosts.value[0], f"first of {hosts.source}")),
        master_port=environment.master_port(environment.port_of_job("SLURM_JOB_ID", "SLURM_STEP_ID")),
    )


def unused_nodes(variables: Mapping[str, str]) -> str | None:
    """Return a warning if a process without srun leaves nodes of its allocation unused; None otherwise."""
    environment = Environment(variables)
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NUM_NODES" not in environment or started(environment):
        return None
    nodes = environment.integer("SLURM_JOB_NUM_NODES", beside="SLURM_JOB_ID").value
    if nodes < 2:
        return None
    return (
        f"{environment.show('SLURM_JOB_ID')} has {nodes} nodes, and this trains on one of them, because srun did not "
        "start it: write srun --ntasks-per-node=1 smddp run …, or srun python …"
    )


def expand_tasks(listed: EnvValue[str]) -> tuple[int, ...]:
    """Return the number of tasks on each node: ``2(x3),1`` is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in listed.value.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise ClusterError(f"{listed.source}: expected numbers of tasks such as 2(x3),1.")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def expand_nodes(listed: EnvValue[str]) -> tuple[str, ...]:
    """Return the names in a compressed list: ``gpu[01-03,07],login`` is gpu01, gpu02, gpu03, gpu07, login."""
    names = [name for part in _OUTSIDE_BRACKETS.split(listed.value) for name in _expand(part.strip())]
    if not names or not all(name and "[" not in name and "]" not in name for name in names):
        raise ClusterError(f"{listed.source}: expected a list of nodes such as gpu[01-03,07].")
    return tuple(names)


def _expand(pattern: str) -> list[str]:
    match = _BRACKETS.search(pattern)
    if match is None:
        return [pattern]
    head, tails = pattern[: match.start()], _expand(pattern[match.end() :])
    return [head + index + tail for piece in match[1].split(",") for index in _range(piece) for tail in tails]


def _range(piece: str) -> list[str]:
    first, dash, last = piece.strip().partition("-")
    if not dash:
        last = first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        return [f"[{piece}]"]  # not a range: expand_nodes() refuses names with brackets
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _local_world_size(
    environment: Environment, world_size: EnvValue[int], node_rank: EnvValue[int], node_count: EnvValue[int]
) -> EnvValue[int]:
    listed = environment.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", beside="SLURM_PROCID")
    tasks = expand_tasks(listed)
    if len(tasks) != node_count.value or sum(tasks) != world_size.value or node_rank.value >= len(tasks):
        raise ClusterError(
            f"{listed.source} places {counted(sum(tasks), 'task')} on {counted(len(tasks), 'node')}, but "
            f"{world_size.source}, {node_count.source}, {node_rank.source}."
        )
    return EnvValue(tasks[node_rank.value], f"{listed.source} at {node_rank.source}")
