"""The state of a run that a checkpoint saves: the parts that the script names, and each rank's random numbers.

The random numbers are the states of Python's, numpy's global and PyTorch's generators, on the CPU and on every GPU. A
generator that a script creates is not included: the script names it as a separate part.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from smddp.accelerator import device_count, device_kind, random_states, set_random_state
from smddp.checkpoint.format.manifest import is_part_name
from smddp.checkpoint.format.shards import division_of
from smddp.checkpoint.parts.modules import ModulePart, has_pieces
from smddp.checkpoint.parts.optimizers import NamedOptimizer
from smddp.display_text import counted, describe
from smddp.distributed import is_flat
from smddp.dtensor import first_slice, is_dtensor

logger = logging.getLogger(__name__)

RANKS = "ranks"
"""The name of the per-rank state: a list of dicts, in the order of the ranks."""

RNG = "rng"
"""The key of the random number generators in each of these dicts. In format 1, a part that is such a list."""


@runtime_checkable
class Stateful(Protocol):
    """An object that returns its state and loads it: a module, an optimizer, a scheduler, a scaler, a sampler."""

    def state_dict(self) -> Any:
        """Return the state: dicts, lists and tuples of tensors, arrays, numbers, texts and None."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Load a state that `state_dict` returned."""


@runtime_checkable
class Checking(Stateful, Protocol):
    """A part that can check a state before loading it."""

    def check_state_dict(self, state: Any, /) -> None:
        """Raise ValueError if the state does not fit. Change nothing."""


@runtime_checkable
class Gathering(Stateful, Protocol):
    """A part that the ranks prepare together before each `state_dict`, since each may have a piece of its state."""

    def gather_state_dict(self, *, keep: bool) -> None:
        """Prepare the next `state_dict`; collective. Set `keep` if this rank calls `state_dict`."""


def check_parts(state: Mapping[str, object], per_rank: Mapping[str, object]) -> None:
    """Raise TypeError for a part that is not `Stateful`, ValueError for an invalid or duplicate name.

    Also raise ValueError for a part that is divided among the ranks in a way that can't be saved.
    """
    for name, part in [*state.items(), *per_rank.items()]:
        if name in (RNG, RANKS) or not is_part_name(name):
            raise ValueError(
                f"{name!r} cannot name a part of the state: 1 to 64 letters, digits, '-' and '_' can, but for "
                f"{RNG!r} and {RANKS!r}, where the ranks' own states are, and names like 'model-00001-of-00002'"
            )
        if not isinstance(part, Stateful):
            raise TypeError(f"{name!r} is {describe(part)}: it has no state_dict and load_state_dict")
    for name, part in state.items():
        if (why := _why_not_savable(part)) is not None:
            raise ValueError(f"{name!r} can't be saved: {why}")
    if both := sorted(set(state) & set(per_rank)):
        raise ValueError(f"{', '.join(both)} is both in state and in per_rank: a part is the same on all ranks, or not")


def is_in_pieces(part: object) -> bool:
    """Return whether a module or an optimizer has DTensors: each rank then saves and loads its own pieces."""
    module = part.module if isinstance(part, ModulePart) else part
    if isinstance(module, torch.nn.Module):
        return has_pieces(module)
    return any(is_dtensor(tensor) for _, tensor in _tensors_of(part))


def saving_ranks_of(parts: Iterable[object]) -> list[tuple[int, ...]]:
    """Return the ranks that save the pieces of each DTensor of modules and optimizers; all ranks must agree on it."""
    tensors = (tensor for part in parts for _, tensor in _tensors_of(part) if is_dtensor(tensor))
    return [first_slice(tensor.device_mesh) for tensor in tensors]  # type: ignore[attr-defined]


def _why_not_savable(part: object) -> str | None:
    """Describe, for people, how a module or an optimizer is divided among the ranks, if not in pieces; else None."""
    if isinstance(part, torch.nn.Module) and any(map(is_flat, part.modules())):
        return (
            "it is a FullyShardedDataParallel, which hides the layout of its weights: shard the module by torch's "
            "fully_shard"
        )
    found = ((name, division_of(tensor).why_unsupported) for name, tensor in _tensors_of(part) if is_dtensor(tensor))
    return next((f"{name} is {why}" for name, why in found if why is not None), None)


def _tensors_of(part: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(part, torch.nn.Module):
        yield from part.named_parameters()
        yield from part.named_buffers()
    optimizer = part.optimizer if isinstance(part, NamedOptimizer) else part
    if isinstance(optimizer, torch.optim.Optimizer):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        yield from ((f"parameter {number}", weight) for number, weight in enumerate(weights))


def capture_random_state() -> dict[str, Any]:
    """Return the state of this process's generators, without advancing them."""
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": [],  # earlier releases read it
        **random_states(),
    }


def of_own_device(state: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a captured state in which every device has the state of one, for a rank that computes on another one."""
    return {
        kind: [each[index]] * len(each) if isinstance(each, list) and len(each) > index else each
        for kind, each in state.items()
    }


def restore_random_state(states: Sequence[dict[str, Any]], *, rank: int) -> None:
    """Restore this rank's generators from the captured state of each rank. Seed a new rank deterministically."""
    if rank >= len(states):
        _seed(states[0], rank)
        logger.info(
            "rank %d has no random state in a checkpoint of %s: seeded anew", rank, counted(len(states), "rank")
        )
        return
    state = states[rank]
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    kind, saved = next(
        ((key, found) for key, found in state.items() if key not in ("python", "numpy", "torch") and found),
        ("cuda", []),
    )
    devices = device_count() if saved and kind == device_kind() else 0
    if devices != len(saved):
        logger.warning(
            "the checkpoint has the random state of %d GPUs for rank %d, here are %d: what is drawn on a GPU differs",
            len(saved),
            rank,
            devices,
        )
    for device, generator in enumerate(saved[:devices]):
        set_random_state(generator, kind, device)


def _seed(state: dict[str, Any], rank: int) -> None:
    """Seed all generators from rank 0's state and this rank."""
    text = state["torch"].numpy().tobytes() + str(rank).encode()
    seed = int.from_bytes(hashlib.shake_256(text).digest(8), "little")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # seeds every GPU as well
