"""MPI's variables: OpenMPI's OMPI_COMM_WORLD_*, and PMI_* with MPI_LOCALRANKID of MPICH's and Intel MPI's Hydra.

MPI gives neither node numbers nor a master address. Node numbers are computed, which needs ranks that fill one node
after the other (``--map-by slot``, the default). The master address is MASTER_ADDR, or SageMaker's first host, or this
machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from smddp.cluster import sagemaker, slurm
from smddp.cluster.strict_variables import DEFAULT_PORT, Environment, EnvValue, EnvValues, unnamed_hosts
from smddp.errors import ClusterError

_JOB_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dialect:
    rank: str
    size: str
    local_rank: str
    local_size: str


_OPENMPI = _Dialect(
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
)
_HYDRA = _Dialect(rank="PMI_RANK", size="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS")


def started(environment: Environment) -> bool:
    """Return whether mpirun or mpiexec started this process; under srun, which sets PMI_RANK too, Slurm started it."""
    if environment.first(_OPENMPI.rank, _OPENMPI.size, _HYDRA.local_rank) is not None:
        return True
    return _HYDRA.rank in environment and not slurm.started(environment)


def rank_and_size(environment: Environment) -> tuple[EnvValue[int], EnvValue[int]]:
    """Return MPI's rank and world size."""
    dialect = _dialect(environment)
    return (
        environment.integer(dialect.rank, beside=_evidence(environment, dialect)),
        environment.integer(dialect.size, beside=_evidence(environment, dialect), minimum=1),
    )


def read(environment: Environment) -> EnvValues:
    """Return the ranks as MPI numbers them; in a SageMaker job, with SageMaker's host names."""
    dialect = _dialect(environment)
    evidence = _evidence(environment, dialect)
    rank, world_size = rank_and_size(environment)
    local_rank = environment.integer(dialect.local_rank, beside=evidence)
    local_world_size = environment.integer(dialect.local_size, beside=evidence, minimum=1)
    if world_size.value % local_world_size.value or rank.value % local_world_size.value != local_rank.value:
        raise ClusterError(
            f"{rank.source} of {world_size.source} is {local_rank.source} of {local_world_size.source}: expected as "
            "many ranks on each node, filling one node after the other. Run mpirun with --map-by slot and as many "
            "slots on every host."
        )
    node_count = EnvValue(
        world_size.value // local_world_size.value, f"{world_size.source} / {local_world_size.source}"
    )
    if sagemaker.started(environment):
        hosts = sagemaker.hosts(environment)
        if len(hosts.value) != node_count.value:
            every = len(hosts.value) * local_world_size.value
            raise ClusterError(
                f"MPI runs on {node_count.value} host(s) ({node_count.source}), but the job has {len(hosts.value)} "
                f"({hosts.source}): expected ranks on each. mpirun's -np counts those of all hosts. SDK V3 gives it "
                f'those of one: correct it with MPI(mpi_additional_options=["-np", "{every}"]).'
            )
        master_addr, master_port = sagemaker.master_addr(environment, hosts), sagemaker.master_port(environment)
    else:
        hosts = unnamed_hosts(node_count.value, "MPI")
        master_addr, master_port = _master_addr(environment, node_count), _master_port(environment)
    return EnvValues(
        launcher=EnvValue("mpi", environment.show(evidence)),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=EnvValue(rank.value // local_world_size.value, f"{rank.source} // {local_world_size.source}"),
        node_count=node_count,
        hosts=hosts,
        master_addr=master_addr,
        master_port=master_port,
    )


def _dialect(environment: Environment) -> _Dialect:
    return _OPENMPI if environment.first(_OPENMPI.rank, _OPENMPI.size) is not None else _HYDRA


def _evidence(environment: Environment, dialect: _Dialect) -> str:
    evidence = environment.first(dialect.rank, dialect.size, dialect.local_rank)
    assert evidence is not None, "asked only after started()"
    return evidence


def _master_addr(environment: Environment, node_count: EnvValue[int]) -> EnvValue[str]:
    if "MASTER_ADDR" not in environment and node_count.value > 1:
        raise ClusterError(
            f"MPI runs on {node_count.value} nodes ({node_count.source}), and MASTER_ADDR is not set: expected the "
            "address of rank 0's node, the same on all. Run mpirun with -x MASTER_ADDR=HOST -x MASTER_PORT=PORT."
        )
    return environment.master_addr(EnvValue("127.0.0.1", f"default: one node ({node_count.source})"))


def _master_port(environment: Environment) -> EnvValue[int]:
    if environment.first(*_JOB_IDS) is None:
        return environment.master_port(EnvValue(DEFAULT_PORT, "default: this MPI gives its jobs no id"))
    return environment.master_port(environment.port_of_job(*_JOB_IDS))
