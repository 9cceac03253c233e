"""torchrun's variables, which other programs with torch's ``env://`` convention set as well: RANK and others.

A RANK without LOCAL_RANK is refused: Alibaba's PAI-DLC and Kubeflow's PyTorchJob number *nodes* with RANK and
WORLD_SIZE. Reading these as processes would silently train on one process of each node.
"""

from __future__ import annotations

from smddp.cluster import mpi, sagemaker, slurm
from smddp.cluster.strict_variables import Environment, EnvValue, EnvValues, is_equal_share, unnamed_hosts
from smddp.errors import ClusterError

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NODES_REMEDY = (
    "a RANK without LOCAL_RANK may number nodes, not processes (Alibaba PAI-DLC, Kubeflow). Start the script with "
    "torchrun --node-rank $RANK, set all of them, or unset RANK if no launcher started this process."
)


def started(environment: Environment) -> bool:
    """Return whether RANK or LOCAL_RANK is set, or a size alone that neither MPI nor Slurm explains."""
    if environment.first("RANK", "LOCAL_RANK") is not None:
        return True
    sized = environment.first("WORLD_SIZE", "LOCAL_WORLD_SIZE") is not None
    return sized and not mpi.started(environment) and not slurm.started(environment)


def read(environment: Environment) -> EnvValues:
    """Return the ranks as torchrun numbers them; in a SageMaker job, with SageMaker's host names."""
    evidence = environment.first("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert evidence is not None, "read() follows started()"
    may_number_nodes = "RANK" in environment and "LOCAL_RANK" not in environment
    environment.require_all(*_NEEDED, beside=evidence, remedy=_NODES_REMEDY if may_number_nodes else "")
    rank = environment.integer("RANK", beside=evidence)
    local_rank = environment.integer("LOCAL_RANK", beside=evidence)
    world_size = environment.integer("WORLD_SIZE", beside=evidence, minimum=1)
    local_world_size = environment.integer("LOCAL_WORLD_SIZE", beside=evidence, minimum=1)
    _refuse_disagreement(environment, rank, world_size)
    node_rank, node_count = _nodes(environment, rank, world_size, local_world_size)
    return EnvValues(
        launcher=EnvValue("torchrun", environment.show(environment.first("TORCHELASTIC_RUN_ID") or "RANK")),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=node_rank,
        node_count=node_count,
        hosts=_hosts(environment, node_rank, node_count),
        master_addr=environment.text("MASTER_ADDR", beside=evidence),
        master_port=environment.integer("MASTER_PORT", beside=evidence, minimum=1),
    )


def _nodes(
    environment: Environment, rank: EnvValue[int], world_size: EnvValue[int], local_world_size: EnvValue[int]
) -> tuple[EnvValue[int], EnvValue[int]]:
    if environment.first("GROUP_RANK", "GROUP_WORLD_SIZE") is not None:
        return (
            environment.integer("GROUP_RANK", beside="GROUP_WORLD_SIZE"),
            environment.integer("GROUP_WORLD_SIZE", beside="GROUP_RANK", minimum=1),
        )
    if world_size.value % local_world_size.value != 0:
        raise ClusterError(
            f"{world_size.source} is no multiple of {local_world_size.source}: where nodes run different numbers of "
            "processes, set GROUP_RANK and GROUP_WORLD_SIZE to this node's number and the number of nodes."
        )
    return (
        EnvValue(rank.value // local_world_size.value, f"{rank.source} // {local_world_size.source}"),
        EnvValue(world_size.value // local_world_size.value, f"{world_size.source} // {local_world_size.source}"),
    )


def _hosts(environment: Environment, node_rank: EnvValue[int], node_count: EnvValue[int]) -> EnvValue[tuple[str, ...]]:
    if not sagemaker.started(environment):
        return unnamed_hosts(node_count.value, "torchrun")
    names, current = sagemaker.hosts(environment), sagemaker.current_host(environment)
    if len(names.value) == node_count.value > node_rank.value and names.value[node_rank.value] != current.value:
        raise ClusterError(
            f"{current.source}, but node rank {node_rank.value} ({node_rank.source}) is host "
            f"{names.value[node_rank.value]} of {names.source}: set torchrun's --node-rank to this host's "
            "position in that list."
        )
    return names


def _refuse_disagreement(environment: Environment, rank: EnvValue[int], world_size: EnvValue[int]) -> None:
    """Check that a RANK set by hand fits the launcher around it: the same ranks, or equal shares of its ranks.

    torchrun overwrites RANK and may number nodes in any order, so its ranks are not checked.
    """
    outer = next((launcher for launcher in (mpi, slurm) if launcher.started(environment)), None)
    if outer is None or "TORCHELASTIC_RUN_ID" in environment:
        return
    outer_rank, outer_size = outer.rank_and_size(environment)
    if not is_equal_share(rank.value, world_size.value, outer_rank=outer_rank.value, outer_size=outer_size.value):
        raise ClusterError(
            f"Two launchers disagree: {rank.source}, {world_size.source}, but {outer_rank.source}, "
            f"{outer_size.source}. Unset the one that did not start this process."
        )
