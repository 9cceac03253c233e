"""``smddp.Cluster`` as the environment variables that Accelerate, and so transformers, reads.

Accelerate reads torchrun's variables. Under srun, SageMaker's MPI and others it finds none, and each process trains
alone on all of the data, without a warning. It does the same on CPUs unless it is told to use them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping

import torch

from smddp.cluster import Cluster
from smddp.errors import DistributedError

logger = logging.getLogger(__name__)


def export_ranks(cluster: Cluster | None = None, environ: MutableMapping[str, str] | None = None) -> None:
    """Set torchrun's missing variables, for libraries that read no others.

    Call it before you make ``TrainingArguments`` or ``Accelerator``. For one process it sets nothing. If PyTorch sees
    no GPU, it sets ``ACCELERATE_USE_CPU``, too.

    Args:
        cluster: This rank; detected from the environment if None.
        environ: The environment to change; None is this process's own.

    Raises:
        DistributedError: A variable is set already, to another value.

    Examples:
        >>> found = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> export_ranks(Cluster.detect(found), found)
        >>> found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["MASTER_ADDR"]
        ('1', '2', '0', 'algo-1')
    """
    environ = os.environ if environ is None else environ
    cluster = cluster or Cluster.detect(environ)
    if cluster.world_size == 1:
        return
    variables = {
        "RANK": cluster.rank,
        "WORLD_SIZE": cluster.world_size,
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_WORLD_SIZE": cluster.local_world_size,
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": cluster.master_port,
    }
    wrong = {name: value for name, value in variables.items() if environ.get(name) not in (None, "", str(value))}
    if wrong:
        found = ", ".join(f"{name}={environ[name]}" for name in wrong)
        raise DistributedError(
            f"{found} is set, and Accelerate would believe it; by {cluster.launcher} it is "
            f"{', '.join(f'{name}={value}' for name, value in wrong.items())}: unset what is wrong"
        )
    if not torch.cuda.is_available():
        variables["ACCELERATE_USE_CPU"] = "true"
    missing = {name: str(value) for name, value in variables.items() if not environ.get(name)}
    environ.update(missing)
    if missing:
        logger.info("set for Accelerate: %s", ", ".join(f"{name}={value}" for name, value in missing.items()))
