"""The random number generators of one rank: Python's, numpy's global one, PyTorch's on the CPU and on every GPU.

Generators that a script creates are not included: pass them to the Checkpointer as parts of its state.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)


def capture() -> dict[str, Any]:
    """Return the state of this process's generators, without advancing them."""
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _uses_gpus() else [],
    }


def restore(states: Sequence[dict[str, Any]], *, rank: int) -> None:
    """Restore this rank's generators from the `capture` of each rank, in order. Seed a new rank deterministically."""
    if rank >= len(states):
        _seed(states[0], rank)
        logger.info("rank %d has no random state in a checkpoint of %d ranks: seeded anew", rank, len(states))
        return
    state = states[rank]
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if state["cuda"] and torch.cuda.is_available() else 0
    if devices != len(state["cuda"]):
        logger.warning(
            "the checkpoint has the random state of %d GPUs for rank %d, here are %d: what is drawn on a GPU differs",
            len(state["cuda"]),
            rank,
            devices,
        )
    for device, cuda in enumerate(state["cuda"][:devices]):
        torch.cuda.set_rng_state(cuda, device)


def _uses_gpus() -> bool:
    """Return whether CUDA is initialized, without initializing it, which is slow. If not, no GPU generator was used."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _seed(state: dict[str, Any], rank: int) -> None:
    """Seed all generators from rank 0's state and this rank."""
    text = state["torch"].numpy().tobytes() + str(rank).encode()
    seed = int.from_bytes(hashlib.shake_256(text).digest(8), "little")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # seeds every GPU as well
