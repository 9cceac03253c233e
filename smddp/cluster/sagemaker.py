"""SageMaker's hosts, in the dialects of its SDKs V2 (SM_HOSTS, SM_CURRENT_HOST) and V3 (also SM_HOST_COUNT, ...).

A job without a launcher runs one process on each host. ``torchrun`` and ``mpi`` take only the host names from here. The
variables come from the sagemaker-training toolkit 5.1 and from V3's container drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smddp.cluster.strict_variables import Environment, EnvValue, EnvValues
from smddp.errors import ClusterError

MASTER_PORT = 7777
"""The port of SageMaker's toolkit; in a job, ``SMDDP_MASTER_PORT`` replaces it."""

OF_RUN_DIRECTORY = "SMDDP_SM_VARIABLES"
"""The variable that lists the SM_* variables set by ``smddp run`` for scripts written for SageMaker. There is no
SageMaker then, so detection ignores these."""

_RESOURCE_CONFIG = "the JSON object of resourceconfig.json"
_A_LIST = 'a JSON list of host names such as ["algo-1", "algo-2"]'


def without_run_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that ``smddp run`` set from its run directory."""
    own = {OF_RUN_DIRECTORY, *environ.get(OF_RUN_DIRECTORY, "").split(",")}
    return {name: value for name, value in environ.items() if name not in own}


def started(environment: Environment) -> bool:
    """Return whether this is a SageMaker job."""
    if OF_RUN_DIRECTORY in environment:
        return False  # `smddp run` sets it only outside SageMaker
    return environment.first("SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG") is not None


def read(environment: Environment) -> EnvValues:
    """Return one process for each host, numbered as the hosts are."""
    names, current = hosts(environment), current_host(environment)
    index = EnvValue(_index(environment, names, current), f"{current.source} in {names.source}")
    count = EnvValue(len(names.value), names.source)
    why = "default: SageMaker started one process a host"
    return EnvValues(
        launcher=EnvValue("sagemaker", names.source),
        rank=index,
        local_rank=EnvValue(0, why),
        world_size=count,
        local_world_size=EnvValue(1, why),
        node_rank=index,
        node_count=count,
        hosts=names,
        master_addr=master_addr(environment, names),
        master_port=master_port(environment),
    )


def hosts(environment: Environment) -> EnvValue[tuple[str, ...]]:
    """Return the hosts that train together, in the platform's order.

    In a heterogeneous cluster these are only the hosts of SM_DISTRIBUTION_INSTANCE_GROUPS, as in the toolkit.
    """
    environment.require("SM_HOSTS", "SM_RESOURCE_CONFIG", beside="SM_CURRENT_HOST")
    if "SM_HOSTS" not in environment:
        listed = _resource_config(environment, "hosts")
        return _of_the_distribution(environment) or EnvValue(_names(listed), listed.source)
    listed = environment.json("SM_HOSTS", expected=_A_LIST)
    names = EnvValue(_names(listed), listed.source)
    if "SM_HOST_COUNT" in environment:
        count = environment.integer("SM_HOST_COUNT", beside="SM_HOSTS")
        if count.value != len(names.value):
            raise ClusterError(
                f"{count.source}, but {names.source} names {len(names.value)}: expected the same number."
            )
    return _of_the_distribution(environment) or names


def current_host(environment: Environment) -> EnvValue[str]:
    """Return the name of this host."""
    environment.require("SM_CURRENT_HOST", "SM_RESOURCE_CONFIG", beside="SM_HOSTS")
    if "SM_CURRENT_HOST" in environment:
        return environment.text("SM_CURRENT_HOST", beside="SM_HOSTS")
    name = _resource_config(environment, "current_host")
    return EnvValue(str(name.value), name.source)


def master_addr(environment: Environment, names: EnvValue[tuple[str, ...]]) -> EnvValue[str]:
    """Return MASTER_ADDR, or V3's SM_MASTER_ADDR, or the first host, as the toolkit does."""
    if "SM_MASTER_ADDR" in environment:
        return environment.master_addr(environment.text("SM_MASTER_ADDR", beside="SM_MASTER_ADDR"))
    return environment.master_addr(EnvValue(names.value[0], f"first of {names.source}"))


def master_port(environment: Environment) -> EnvValue[int]:
    """Return MASTER_PORT, or V3's SM_MASTER_PORT, or 7777, as the toolkit does."""
    if "SM_MASTER_PORT" in environment:
        return environment.master_port(environment.integer("SM_MASTER_PORT", beside="SM_MASTER_PORT"))
    return environment.master_port(EnvValue(MASTER_PORT, "default: the SageMaker toolkit's port"))


def _index(environment: Environment, names: EnvValue[tuple[str, ...]], current: EnvValue[str]) -> int:
    if current.value not in names.value:
        raise ClusterError(f"{current.source} is not one of {names.source}: expected one of {', '.join(names.value)}.")
    index = names.value.index(current.value)
    if "SM_CURRENT_HOST_RANK" in environment:
        rank = environment.integer("SM_CURRENT_HOST_RANK", beside="SM_HOSTS")
        if rank.value != index:
            raise ClusterError(f"{rank.source}, but {current.source} is number {index} of {names.source}.")
    return index


def _of_the_distribution(environment: Environment) -> EnvValue[tuple[str, ...]] | None:
    if "SM_DISTRIBUTION_INSTANCE_GROUPS" not in environment or "SM_RESOURCE_CONFIG" not in environment:
        return None
    chosen = environment.json("SM_DISTRIBUTION_INSTANCE_GROUPS", expected="a JSON list of instance groups")
    if "instance_groups" not in _whole_resource_config(environment).value:
        return None  # the SDK's Local Mode has hosts, but no groups
    groups = _resource_config(environment, "instance_groups")
    try:
        names = [
            host for group in groups.value if group["instance_group_name"] in chosen.value for host in group["hosts"]
        ]
    except (KeyError, TypeError) as error:
        raise ClusterError(
            f"{groups.source}, {chosen.source}: expected instance groups, each with instance_group_name and hosts, and "
            "a JSON list of such names."
        ) from error
    return EnvValue(tuple(names), f"{chosen.source} of SM_RESOURCE_CONFIG") if names else None


def _resource_config(environment: Environment, key: str) -> EnvValue[Any]:
    config = _whole_resource_config(environment)
    if key not in config.value:
        raise ClusterError(f"{config.source}: expected {_RESOURCE_CONFIG}, with {key}.")
    return EnvValue(config.value[key], f"{key} of {config.source}")


def _whole_resource_config(environment: Environment) -> EnvValue[dict[str, Any]]:
    config = environment.json("SM_RESOURCE_CONFIG", expected=_RESOURCE_CONFIG)
    if not isinstance(config.value, dict):
        raise ClusterError(f"{config.source}: expected {_RESOURCE_CONFIG}.")
    return EnvValue(config.value, config.source)


def _names(listed: EnvValue[object]) -> tuple[str, ...]:
    names = listed.value
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise ClusterError(f"{listed.source}: expected {_A_LIST}.")
    return tuple(names)
