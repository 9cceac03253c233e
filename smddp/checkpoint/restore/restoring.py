"""Loads a checkpoint from memory into the parts of a run.

`Restoration.check` finds missing parts and other models before `Restoration.apply` changes anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.parameter import is_lazy

from smddp.checkpoint.format.names import is_part_name
from smddp.checkpoint.restore import rng
from smddp.checkpoint.restore.optimizers import check_optimizer, some
from smddp.checkpoint.restore.reader import Loaded
from smddp.distributed.sharding import find_sharded_weight, find_sharding
from smddp.errors import CheckpointError
from smddp.job.saved_model import in_names_of, plain_name, plain_state

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
class Sharded(Stateful, Protocol):
    """A part whose state is sharded among the ranks. `state_dict` needs `gather_state_dict` before it."""

    def gather_state_dict(self, *, keep: bool) -> None:
        """Gather the state for the next `state_dict`; collective. Set `keep` if this rank calls `state_dict`."""


def check_parts(state: Mapping[str, object], per_rank: Mapping[str, object]) -> None:
    """Raise ValueError for an invalid or duplicate name or a sharded part, TypeError for a part not `Stateful`."""
    for name, part in [*state.items(), *per_rank.items()]:
        if name in (RNG, RANKS) or not is_part_name(name):
            raise ValueError(
                f"{name!r} cannot name a part of the state: 1 to 64 letters, digits, '-' and '_' can, but for "
                f"{RNG!r} and {RANKS!r}, where the ranks' own states are, and names like 'model-00001-of-00002'"
            )
        if not isinstance(part, Stateful):
            raise TypeError(f"{name!r} is a {type(part).__qualname__}: it has no state_dict and load_state_dict")
    for name, part in state.items():
        if (sharding := _sharding(part)) is not None:
            raise ValueError(
                f"{name!r} is sharded among the ranks ({sharding}), and a Checkpointer saves only what every "
                "rank has in full: save it with torch.distributed.checkpoint, or replicate the model "
                "(DistributedDataParallel)"
            )
    if both := sorted(set(state) & set(per_rank)):
        raise ValueError(f"{', '.join(both)} is both in state and in per_rank: a part is the same on all ranks, or not")


def _sharding(part: object) -> str | None:
    if isinstance(part, torch.nn.Module):
        return find_sharding(part)
    if isinstance(part, torch.optim.Optimizer):
        weights = [weight for group in part.param_groups for weight in group["params"]]
        return find_sharded_weight((f"parameter {number}", weight) for number, weight in enumerate(weights))
    return None


def _empty_buffers(module: torch.nn.Module, state: Mapping[str, Any]) -> Iterator[tuple[torch.nn.Module, str, str]]:
    """Yield the buffers that are None here but present in the state, because a forward pass assigns them.

    Each item is the buffer's module, its name in that module, and its key in the state.
    """
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():  # noqa: SLF001
            key = f"{prefix}.{name}" if prefix else name
            if buffer is None and isinstance(state.get(key), torch.Tensor):
                yield owner, name, key


class Restoration:
    """Loads a checkpoint into the parts of a run, on one rank: `check` first, then `apply`."""

    def __init__(
        self, loaded: Loaded, *, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], rank: int
    ) -> None:
        """Change nothing yet."""
        self._loaded = loaded
        self._state = state
        self._per_rank = per_rank
        self._rank = rank
        self._what = f"the checkpoint of step {loaded.manifest.step}"
        skeletons = loaded.skeletons
        self._ranks: list[dict[str, Any]] = (
            loaded.unflatten(RANKS)
            if RANKS in skeletons
            else [{RNG: random} for random in loaded.unflatten(RNG)]  # format 1
        )

    def check(self) -> None:
        """Raise CheckpointError if the checkpoint lacks a part or a part's state does not fit. Change nothing."""
        saved = set(self._loaded.skeletons) - {RANKS, RNG}
        own = set(self._ranks[0]) - {RNG}
        missing = sorted((set(self._state) - saved) | (set(self._per_rank) - own - saved))
        if missing:
            raise CheckpointError(
                f"{self._what} has no {', '.join(missing)}, only {', '.join(sorted(saved | own))}; resume with the "
                "same parts, or start anew in another directory"
            )
        for name, part in self._state.items():
            if isinstance(part, torch.nn.Module):
                self._check_module(name, part, self._loaded.unflatten(name))
            elif isinstance(part, Checking):
                self._check_part(name, part.check_state_dict, self._loaded.unflatten(name))
            elif isinstance(part, torch.optim.Optimizer):
                self._check_part(name, partial(check_optimizer, part), self._loaded.unflatten(name))
        own_state = self._ranks[self._rank] if self._rank < len(self._ranks) else {}
        for name, part in self._per_rank.items():
            if isinstance(part, Checking) and name in own_state:
                self._check_part(name, part.check_state_dict, own_state[name])
        unused = sorted((saved | own) - set(self._state) - set(self._per_rank))
        if unused and self._rank == 0:
            logger.warning("%s also has %s: not used", self._what, ", ".join(unused))

    def apply(self) -> None:
        """Load the state into each part. Raise CheckpointError if a part fails to load."""
        # Modules last: once checked they load without errors, and a part that fails before leaves them unchanged.
        for name, part in sorted(self._state.items(), key=lambda item: isinstance(item[1], torch.nn.Module)):
            state = self._loaded.unflatten(name)
            if isinstance(part, torch.nn.Module):
                state = in_names_of(part.state_dict(), state)
                device = next((weight.device for weight in part.parameters()), None)
                for owner, buffer, key in _empty_buffers(part, state):
                    setattr(owner, buffer, state[key].to(device, copy=True))
            self._give(name, part, state)
        is_new = self._rank >= len(self._ranks)
        own = {} if is_new else self._ranks[self._rank]
        for name, part in self._per_rank.items():
            if name in own:
                self._give(name, part, own[name])
            elif name not in self._ranks[0]:  # saved as a part that is the same on all ranks
                self._give(name, part, self._loaded.unflatten(name))
        if is_new and self._per_rank:
            logger.warning(
                "rank %d has no %s in a checkpoint of %d ranks: it begins with its own, as for a new run",
                self._rank,
                ", ".join(self._per_rank),
                len(self._ranks),
            )
        rng.restore([each[RNG] for each in self._ranks], rank=self._rank)

    def _give(self, name: str, part: Stateful, state: Any) -> None:
        try:
            part.load_state_dict(state)
        except Exception as error:
            raise CheckpointError(
                f"{self._what} does not fit this run's {name}: {type(error).__name__}: {error}"
            ) from error

    def _check_part(self, name: str, check: Callable[[Any], None], state: Any) -> None:
        try:
            check(state)
        except (ValueError, KeyError, TypeError) as error:
            reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise CheckpointError(
                f"{self._what} does not fit this run's {name}: {reason}. Nothing was loaded; resume with what it was "
                "saved of, or start anew in another directory"
            ) from error

    def _check_module(self, name: str, module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
        present, saved = plain_state(module.state_dict()), plain_state(saved)
        misshapen = [
            f"{key} ({_shape(saved[key])} instead of {_shape(present[key])})"
            for key in present
            if key in saved and _shape(saved[key]) != _shape(present[key]) and not is_lazy(present[key])
        ]
        empty = {plain_name(key) for _, _, key in _empty_buffers(module, in_names_of(module.state_dict(), saved))}
        problems = {
            "missing": [key for key in present if key not in saved],
            "unexpected": [key for key in saved if key not in present and key not in empty],
            "misshapen": misshapen,
        }
        found = [f"{len(keys)} {problem}: {some(keys)}" for problem, keys in problems.items() if keys]
        if found:
            raise CheckpointError(
                f"{self._what} is of another model than this run's {name}: {'; '.join(found)}. Nothing was loaded; "
                "resume with the model that it was saved of, or start anew in another directory"
            )
        casts = sorted(
            {
                f"{_dtype(saved[key])} to {_dtype(present[key])}"
                for key in present
                if _dtype(saved[key]) != _dtype(present[key]) and not is_lazy(present[key])
            }
        )
        if casts and self._rank == 0:
            logger.warning("%s: values of %s are cast from %s", self._what, name, ", ".join(casts))


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) and not is_lazy(value) else None


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
