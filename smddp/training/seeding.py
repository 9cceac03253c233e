"""Seeds of all random number generators of a process: for the same weights on all ranks, and for noise of their own."""

from __future__ import annotations

import logging
import os
import random

import numpy as np
import torch

from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPRODUCIBLE = (":4096:8", ":16:8")  # https://docs.nvidia.com/cuda/cublas/#results-reproducibility


def seed_everything(seed: int, *, rank: int | None = None, deterministic: bool = False) -> None:
    """Seed Python, NumPy and PyTorch, on all devices.

    Without ``rank`` the numbers are the same on all ranks, as the making of weights wants them, and what each generator
    gives after its own ``seed(seed)``. With it each rank has others, as dropout and augmentation want them: derived by
    NumPy's SeedSequence, so that the ranks of one seed share no numbers with those of the next::

        smddp.seed_everything(7)
        model = Network()
        trainer = smddp.Trainer(job, model, ...)
        smddp.seed_everything(7, rank=job.cluster.rank)

    A resume overrides it: each rank goes on with the random numbers that its checkpoint holds.

    Args:
        seed: From 0 to 2³² - 1.
        rank: Of this process, or None.
        deterministic: Lets PyTorch use deterministic algorithms only, or raise where there is none, and cuDNN choose
            none by speed. ``CUBLAS_WORKSPACE_CONFIG`` is set to ``:4096:8`` if it is unset. Slower; for the process.

    Raises:
        ValueError: The seed or the rank is out of its range.
        DistributedError: ``deterministic``, and CUDA was initialised before cuBLAS could be told.
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
