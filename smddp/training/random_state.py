"""The random numbers of a rank: seeded for the script, and shared by ranks that compute on the same data.

`smddp.checkpoint.run_state` captures and restores the state of all generators.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from smddp.checkpoint.run_state import capture_random_state, of_own_device, restore_random_state
from smddp.distributed import Membership, Ranks
from smddp.errors import DistributedError
from smddp.training.progress import Progress

logger = logging.getLogger(__name__)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPRODUCIBLE = (":4096:8", ":16:8")  # https://docs.nvidia.com/cuda/cublas/#results-reproducibility


def seed_everything(seed: int, *, rank: int | None = None, deterministic: bool = False) -> None:
    """Seed Python, NumPy and PyTorch, on all devices.

    Without ``rank``, all ranks draw the same numbers, as initial weights need, and each generator behaves as after its
    own ``seed(seed)``. With ``rank``, each rank draws different numbers, as dropout and augmentation need. NumPy's
    SeedSequence derives them, so that neighbouring seeds share no numbers on any rank:

        smddp.seed_everything(7)
        model = Network()
        trainer = smddp.Trainer(job, model, ...)
        smddp.seed_everything(7, rank=job.cluster.rank)

    A resume replaces the seeds: each rank continues with the random state in its checkpoint.

    Args:
        seed: From 0 to 2³² - 1.
        rank: This process's rank, or None.
        deterministic: Allow only deterministic algorithms in PyTorch, which raises for an operation that has none, and
            let cuDNN choose no algorithm by speed. Set ``CUBLAS_WORKSPACE_CONFIG`` to ``:4096:8`` if it is unset. This
            is slower, and holds for the whole process.

    Raises:
        ValueError: The seed or the rank is out of range.
        DistributedError: ``deterministic`` is set, ``CUBLAS_WORKSPACE_CONFIG`` is not, and CUDA is initialised already.
    """
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r}: give a whole number from 0 to {2**32 - 1}")
    if rank is not None and (type(rank) is not int or rank < 0):
        raise ValueError(f"rank={rank!r}: give this process's rank, job.cluster.rank, or None for the same everywhere")
    if deterministic:
        _be_deterministic()
    of_python, of_numpy, of_torch = seed, seed, seed
    if rank is not None:
        words = np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(3, np.uint64).tolist()
        of_python, of_numpy, of_torch = words[0], words[1] % 2**32, words[2]
    random.seed(of_python)
    np.random.seed(of_numpy)
    torch.manual_seed(of_torch)  # seeds every GPU as well


def _be_deterministic() -> None:
    found = os.environ.get(_WORKSPACE)
    if found is None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise DistributedError(
                f"deterministic=True needs {_WORKSPACE} before CUDA is initialised, which it is: set it to "
                f"{_REPRODUCIBLE[0]} in the job's environment, or call seed_everything before anything is on a GPU"
            )
        os.environ[_WORKSPACE] = _REPRODUCIBLE[0]
        logger.info("%s was unset: set to %s, for deterministic=True", _WORKSPACE, _REPRODUCIBLE[0])
    elif found not in _REPRODUCIBLE:
        logger.warning(
            "%s=%s is left as it is: cuBLAS is reproducible with %s", _WORKSPACE, found, " or ".join(_REPRODUCIBLE)
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def share_random_state(membership: Membership, progress: Progress) -> None:
    """Let ranks that compute on the same data draw the same random numbers, and other ranks other ones; collective.

    A script may have seeded ranks of one share apart. A checkpoint of another layout has one state for each of its
    shares: share ``n`` takes the ``n``-th, if a rank has loaded it, and is else seeded anew.
    """
    ranks, own, before = Ranks.current(), membership.data_rank, progress.first_ranks
    is_shared = membership.data_parallel is not None
    progress.first_ranks = ranks.gather(lambda: own.first_rank) if is_shared else []
    if progress.first_ranks == before:
        return
    states = ranks.gather(lambda: of_own_device(capture_random_state(), membership.device.index or 0))
    owners = sorted(set(before)) or range(len(states))
    found = own.rank < len(owners) and owners[own.rank] < len(states)
    restore_random_state(states, rank=owners[own.rank] if found else len(states) + own.rank)


@contextmanager
def random_state_of(moment: dict[str, Any]) -> Iterator[None]:
    """Restore a captured random state while the context lasts, then the present one."""
    present = capture_random_state()
    restore_random_state([moment], rank=0)
    try:
        yield
    finally:
        restore_random_state([present], rank=0)
