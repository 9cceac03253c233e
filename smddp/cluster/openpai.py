"""OpenPAI's variables: one process for each task instance, in the documented and the older dialect.

==================  ==============================================  ==========================
what                documented                                      older examples
==================  ==============================================  ==========================
this instance       PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX        PAI_TASK_INDEX
its task role       PAI_CURRENT_TASK_ROLE_NAME                      the one with PAI_HOST_IP_*
instances           PAI_TASK_ROLE_TASK_COUNT_<role>                 counted
addresses           PAI_HOST_IP_<role>_<i>                          the same
a reserved port     PAI_PORT_LIST_<role>_0_<label>                  PAI_<role>_0_<label>_PORT
==================  ==============================================  ==========================

For several processes in an instance, use torchrun. (Alibaba's PAI-DLC is another product: see ``torchrun``.)
"""

from __future__ import annotations

import re

from smddp.cluster.strict_variables import Environment, EnvValue, EnvValues
from smddp.display_text import shown_names
from smddp.errors import ClusterError

_INDICES = ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "PAI_TASK_INDEX")

_HOST_IP = re.compile(r"PAI_HOST_IP_(.+)_\d+")

_OWN_LABELS = frozenset({"ssh", "http"})
"""Ports that OpenPAI uses itself."""


def started(environment: Environment) -> bool:
    """Return whether this is a task instance of OpenPAI."""
    return environment.first(*_INDICES) is not None


def read(environment: Environment) -> EnvValues:
    """Return one process for each instance of the task role, numbered as the instances are."""
    evidence = environment.first(*_INDICES)
    assert evidence is not None, "read() follows started()"
    index = environment.integer(*_INDICES, beside=evidence)
    role = _role(environment, evidence)
    count = _count(environment, role, evidence)
    addresses = [environment.text(f"PAI_HOST_IP_{role}_{i}", beside=evidence) for i in range(count.value)]
    why = "default: OpenPAI started one process an instance"
    return EnvValues(
        launcher=EnvValue("openpai", environment.show(evidence)),
        rank=index,
        local_rank=EnvValue(0, why),
        world_size=count,
        local_world_size=EnvValue(1, why),
        node_rank=index,
        node_count=count,
        hosts=_hosts(addresses),
        master_addr=environment.master_addr(addresses[0]),
        master_port=_master_port(environment, role, evidence),
    )


def _role(environment: Environment, evidence: str) -> str:
    if "PAI_CURRENT_TASK_ROLE_NAME" in environment:
        return environment.text("PAI_CURRENT_TASK_ROLE_NAME", beside=evidence).value
    roles = sorted({match[1] for name in environment.names("PAI_HOST_IP_") if (match := _HOST_IP.fullmatch(name))})
    if len(roles) != 1:
        raise ClusterError(
            f"{environment.show(evidence)} is set, and PAI_HOST_IP_<role>_<i> names "
            f"{'the task roles ' + ', '.join(roles) if roles else 'no task role'}: expected one, or set "
            "PAI_CURRENT_TASK_ROLE_NAME to that of this process."
        )
    return roles[0]


def _count(environment: Environment, role: str, evidence: str) -> EnvValue[int]:
    name = f"PAI_TASK_ROLE_TASK_COUNT_{role}"
    if name in environment:
        return environment.integer(name, beside=evidence, minimum=1)
    prefix = f"PAI_HOST_IP_{role}_"
    indices = [name for name in environment.names(prefix) if name.removeprefix(prefix).isdecimal()]
    if not indices:
        raise ClusterError(
            f"{environment.show(evidence)} is set, but neither {name} nor {prefix}0 is: expected the task role "
            f"{role}'s number of instances, or their addresses."
        )
    return EnvValue(len(indices), f"{len(indices)} variables {prefix}<i>")


def _hosts(addresses: list[EnvValue[str]]) -> EnvValue[tuple[str, ...]]:
    names = tuple(address.value for address in addresses)
    if len(set(names)) < len(names):  # instances may share a machine
        names = tuple(f"{name}/{index}" for index, name in enumerate(names))
    return EnvValue(names, shown_names((address.source for address in addresses), most=3))


def _master_port(environment: Environment, role: str, evidence: str) -> EnvValue[int]:
    if "MASTER_PORT" in environment:
        return environment.integer("MASTER_PORT", beside=evidence)
    patterns = [
        re.compile(rf"PAI_PORT_LIST_{re.escape(role)}_0_(.+)"),
        re.compile(rf"PAI_{re.escape(role)}_0_(.+)_PORT"),
    ]
    labels: dict[str, str] = {}
    for pattern in patterns:
        for name in environment.names("PAI_"):
            if (match := pattern.fullmatch(name)) and match[1] not in _OWN_LABELS:
                labels.setdefault(match[1], name)
    if len(labels) != 1:
        found = f"{len(labels)} ({', '.join(labels.values())})" if labels else "none"
        raise ClusterError(
            f"Task role {role} needs one reserved port to meet at, PAI_PORT_LIST_{role}_0_<label>; found {found}. "
            "Reserve one in the job's configuration, or set MASTER_PORT."
        )
    (name,) = labels.values()
    reserved = environment.text(name, beside=evidence)
    first = reserved.value.split(",")[0].strip()
    if not first.isdecimal():
        raise ClusterError(f"{reserved.source}: expected a port, or several with commas between them.")
    return EnvValue(int(first), reserved.source)
