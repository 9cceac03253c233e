"""The hosts of a job, and what starts its ranks on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators import distribution
from estimators.image import instance_groups

_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
"""The hyperparameter that AWS's training toolkit reads the number of processes from, for torchrun too."""

_COUNT = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The hosts of a job, and what starts its ranks on them."""

    hosts: tuple[tuple[int | None, str], ...]
    """How many of which instance type: one pair, or one for each instance group; None if a training recipe says it."""
    launcher: str
    """What runs the script on each host."""
    processes_per_host: int | None
    """Ranks on each host; None if the container decides (one a GPU, or one)."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Topology:
        """Return what parameters of ``PyTorch`` describe."""
        groups = instance_groups(arguments)
        hosts: list[tuple[int | None, str]] = [(group.instance_count, group.instance_type) for group in groups]
        if "instance_type" in arguments:
            hosts.append((arguments.get("instance_count"), arguments["instance_type"]))
        given = arguments.get("distribution")
        stated = str(arguments.get("hyperparameters", {}).get(_PROCESSES_PER_HOST, ""))
        return cls(
            hosts=tuple(hosts),
            launcher=distribution.launcher(given),
            processes_per_host=distribution.processes_per_host(given)
            or (int(stated) if _COUNT.fullmatch(stated) else None),
        )

    @property
    def processes(self) -> int | None:
        """Ranks over all hosts; None if it is not known."""
        counts = [count for count, _ in self.hosts]
        if self.processes_per_host is None or not all(isinstance(count, int) for count in counts):
            return None
        return self.processes_per_host * sum(count for count in counts if count is not None)

    def __str__(self) -> str:
        hosts = " + ".join(
            f"{'as many as the recipe says' if count is None else count} × {instance_type}"
            for count, instance_type in self.hosts
        )
        if self.processes_per_host is None:
            return f"{hosts}, {self.launcher}"
        total = "" if self.processes in (None, self.processes_per_host) else f", {self.processes} in all"
        return f"{hosts}, {self.launcher}, {self.processes_per_host} processes on each{total}"
