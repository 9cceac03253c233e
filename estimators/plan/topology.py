"""The hosts of a job, and the launcher of its ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators import distribution
from estimators.instances import instance_groups, instance_preferences
from smddp.container.command import PROCESSES_IN_ALL, PROCESSES_PER_HOST

_COUNT = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The hosts of a job, and the launcher of its ranks."""

    hosts: tuple[tuple[int | None, str], ...]
    """Pairs of number and instance type: one, or one for each instance group. The number is None if a recipe sets it.
    """
    instead: tuple[tuple[int | None, str], ...] = ()
    """Alternatives in the same form: the `instance_preferences` after the first. The job takes the first available."""
    launcher: str
    """The launcher on each host, or on those of the `trained` groups; on the others the script runs alone."""
    trained: tuple[str, ...] = ()
    """The instance groups whose hosts get ranks; empty if all hosts do."""
    hosts_with_ranks: int | None
    """Number of hosts with ranks; None if a recipe sets it, or it depends on the preference taken."""
    processes_per_host: int | None
    """Ranks on each host; None if the container decides (one for each GPU, or one)."""
    stated_processes: int | None = None
    """Ranks over all hosts, if the job limits mpirun to fewer; otherwise None."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Topology:
        """Read the topology from parameters of ``PyTorch``."""
        groups = instance_groups(arguments)
        hosts: list[tuple[int | None, str]] = [(group.instance_count, group.instance_type) for group in groups]
        if "instance_type" in arguments:
            hosts.append((arguments.get("instance_count"), arguments["instance_type"]))
        stated = arguments.get("instance_count")
        preferred = [(each.instance_count or stated, each.instance_type) for each in instance_preferences(arguments)]
        hosts += preferred[:1]
        given = arguments.get("distribution")
        launcher = distribution.launcher(given)
        trained = distribution.trained_groups(arguments)
        counts = [group.instance_count for group in trained] or [count for count, _ in hosts]
        whole = [count for count in counts if isinstance(count, int)]
        vary = len({count for count, _ in preferred}) > 1
        return cls(
            hosts=tuple(hosts),
            instead=tuple(preferred[1:]),
            launcher=launcher,
            trained=tuple(str(group.instance_group_name) for group in trained) if len(trained) < len(groups) else (),
            hosts_with_ranks=sum(whole) if len(whole) == len(counts) and not vary else None,
            processes_per_host=distribution.processes_per_host(given) or _stated(arguments, PROCESSES_PER_HOST),
            stated_processes=_stated(arguments, PROCESSES_IN_ALL) if launcher == "mpirun" else None,
        )

    @property
    def processes(self) -> int | None:
        """Ranks over all hosts, or None if unknown."""
        if self.stated_processes is not None:
            return self.stated_processes
        if self.processes_per_host is None or self.hosts_with_ranks is None:
            return None
        return self.processes_per_host * self.hosts_with_ranks

    def __str__(self) -> str:
        hosts = ", or ".join([" + ".join(map(_in_words, self.hosts)), *map(_in_words, self.instead)])
        launcher = f"{self.launcher} on {', '.join(self.trained)}" if self.trained else self.launcher
        if self.processes_per_host is None:
            return f"{hosts}, {launcher}"
        total = "" if self.processes in (None, self.processes_per_host) else f", {self.processes} in all"
        return f"{hosts}, {launcher}, {self.processes_per_host} processes on each{total}"


def _in_words(hosts: tuple[int | None, str]) -> str:
    count, instance_type = hosts
    return f"{'as many as the recipe says' if count is None else count} × {instance_type}"


def _stated(arguments: Mapping[str, Any], hyperparameter: str) -> int | None:
    stated = str(arguments.get("hyperparameters", {}).get(hyperparameter, ""))
    return int(stated) if _COUNT.fullmatch(stated) else None
