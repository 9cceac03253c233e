"""No launcher: a single process. MASTER_ADDR and MASTER_PORT are kept, but do not imply a launcher."""

from __future__ import annotations

from smddp.cluster.env_values import EnvValue, EnvValues, unnamed_hosts
from smddp.cluster.environment import Environment

DEFAULT_PORT = 29500
"""torchrun's default port."""


def started(environment: Environment) -> bool:
    """Return True: this launcher is asked last."""
    del environment
    return True


def read(environment: Environment) -> EnvValues:
    """Return rank 0 of 1."""
    if "SLURM_JOB_ID" in environment:
        why = f"default: {environment.show('SLURM_JOB_ID')}, but srun did not start this process, so one process"
    else:
        why = "default: no launcher set any variable, so one process"
    zero, one = EnvValue(0, why), EnvValue(1, why)
    return EnvValues(
        launcher=EnvValue("single", why),
        rank=zero,
        local_rank=zero,
        world_size=one,
        local_world_size=one,
        node_rank=zero,
        node_count=one,
        hosts=unnamed_hosts(1, "a single process"),
        master_addr=environment.master_addr(EnvValue("127.0.0.1", why)),
        master_port=environment.master_port(EnvValue(DEFAULT_PORT, why)),
    )
