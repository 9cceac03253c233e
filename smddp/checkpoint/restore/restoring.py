"""From a checkpoint in memory to a run that goes on: each part of it gets its state back, or none does.

What can be seen beforehand, a part that is not there or a module of another model, is seen before anything is changed.
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
from smddp.job.weight_names import in_names_of, plain_name, plain_state

logger = logging.getLogger(__name__)

RANKS = "ranks"
"""The part that each rank has its own of: a list of dicts, in the order of the ranks."""

RNG = "rng"
"""The random numbers: in that list a key of each dict, in format 1 a part and such a list itself."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that gives its state and takes it back: a module, an optimizer, a scheduler, a scaler, a sampler."""

    def state_dict(self) -> Any:
        """Return dicts, lists and tuples of tensors, arrays, numbers, texts and None."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Go back to what `state_dict` gave."""


@runtime_checkable
class Checking(Stateful, Protocol):
    """One that can tell beforehand whether it will take a state."""

    def check_state_dict(self, state: Any, /) -> None:
        """See that the state fits; nothing is changed.

        Raises:
            ValueError: It does not.
        """


@runtime_checkable
class Sharded(Stateful, Protocol):
    """One whose state the ranks have between them, and that gives all of it once it was gathered."""

    def gather_state_dict(self, *, keep: bool) -> None:
        """Bring the state together, for the next `state_dict`; all ranks call it.

        Args:
            keep: Whether this rank will ask for it.
        """


def check_parts(state: Mapping[str, object], per_rank: Mapping[str, object]) -> None:
    """See that parts can be saved under their names.

    Raises:
        ValueError: A name is not possible, or there twice; or a part of `state` is sharded among the ranks.
        TypeError: A part has no state_dict and load_state_dict.
    """
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
    """Yield the buffers that are None here, as a forward pass has not assigned them yet, and are in the state.

    Each comes as its module, its name there, and its name in the state.
    """
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():  # noqa: SLF001
            key = f"{prefix}.{name}" if prefix else name
            if buffer is None and isinstance(state.get(key), torch.Tensor):
                yield owner, name, key


class Restoration:
    """A checkpoint about to be given to the parts of a run, on one rank."""

    def __init__(
        self, loaded: Loaded, *, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], rank: int
    ) -> None:
        """Look at both; nothing is changed yet.

        Args:
            loaded: The checkpoint.
            state: The parts that are the same on all ranks, by name.
            per_rank: The parts that each rank has its own of.
            rank: This one.
        """
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
        """See that the checkpoint fits.

        Raises:
            CheckpointError: A part is not in it, or it is one of another model.
        """
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
        """Give each part its state.

        Raises:
            CheckpointError: A part does not take it.
        """
        # Modules last: they always take what was checked, so that a part that does not leaves them as they were.
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
            elif name not in self._ranks[0]:  # it was saved once for all ranks
                self._give(name, part, self._loaded.unflatten(name))
        if is_new and self._per_rank:
            logger.warning(
                "rank %d has no %s in a checkpoint of %d ranks: it begins with its own, as for a new run",
                *(self._rank, ", ".join(self._per_rank), len(self._ranks)),
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
