"""The parts of a trainer's checkpoint, by name: the model, its optimizers, and the user's own state."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from smddp.checkpoint.restore.optimizers import NamedOptimizer
from smddp.checkpoint.restore.schedules import OptimizerSchedules
from smddp.checkpoint.restore.script_options import OnChange
from smddp.checkpoint.restore.sharded_optimizer import ShardedOptimizer, is_sharded
from smddp.checkpoint.run_state import Stateful, check_parts

logger = logging.getLogger(__name__)

_Trainer = TypeVar("_Trainer")

_OWN = ("model", "optimizer", "scheduler", "scaler", "position", "progress", "loader", "powersgd")


def state_parts(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    scaler: GradScaler | None,
    extra: Mapping[str, Stateful | dict[str, Any]],
    *,
    own: Mapping[str, Stateful],
    on_change: OnChange,
    logs: bool,
) -> dict[str, Stateful]:
    """Return the parts by name.

    Several optimizers are ``optimizer-0``, ``optimizer-1`` and so on, and schedules likewise. ``extra`` has the user's
    parts, ``own`` further parts of the trainer. Raise ValueError for a name in ``extra`` that is taken or not allowed,
    and TypeError for a part without a state.
    """
    named = [_named(each, model, on_change=on_change, logs=logs) for each in optimizers]
    trained: dict[str, Stateful] = {"model": model, **_numbered("optimizer", named)}
    of_optimizers = [OptimizerSchedules(each, on_change=on_change, logs=logs) for each in named]
    trained |= _numbered("scheduler", [_scheduled(each, of_optimizers) for each in schedulers])
    if scaler is not None:
        trained["scaler"] = scaler
    if taken := sorted(name for name in extra if name in _OWN or name in trained or name in own):
        raise ValueError(f"state has {', '.join(taken)}: the trainer's own parts have these names; choose others")
    parts = {
        name: DictState(name, part, logs=logs) if isinstance(part, dict) else _scheduled(part, of_optimizers)
        for name, part in extra.items()
    }
    check_parts(parts, {})
    return {**trained, **own, **parts}


def with_parts_of_kept(
    extra: Mapping[str, Any],
    kind: type[_Trainer],
    parts_of: Callable[[_Trainer], tuple[Mapping[str, Stateful], Mapping[str, Stateful]]],
) -> tuple[dict[str, Stateful | dict[str, Any]], dict[str, Stateful]]:
    """Return the user's state and per-rank state, with each trainer replaced by its parts, such as ``generator-model``.

    ``parts_of`` returns a trainer's parts: those that are the same on all ranks, and those of each rank.
    """
    state: dict[str, Stateful | dict[str, Any]] = {}
    per_rank: dict[str, Stateful] = {}
    for name, part in extra.items():
        if isinstance(part, kind):
            shared, own = parts_of(part)
            state |= {f"{name}-{key}": each for key, each in shared.items()}
            per_rank |= {f"{name}-{key}": each for key, each in own.items()}
        else:
            state[name] = part
    return state, per_rank


class DictState:
    """The user's dict, such as the counter of an early stop: saved as it is, and restored in place."""

    def __init__(self, name: str, values: dict[str, Any], *, logs: bool) -> None:
        self._name = name
        self._values = values
        self._logs = logs

    def state_dict(self) -> dict[str, Any]:
        """Return a deep copy."""
        return copy.deepcopy(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the dict's items, and warn of the script's keys that the checkpoint lacks."""
        if self._logs and (missing := [repr(key) for key in self._values if key not in state]):
            logger.warning(
                "the resume takes %s out of the dict %r in state=: the checkpoint was saved without. Read it with "
                ".get(), or set it after the resume",
                ", ".join(missing),
                self._name,
            )
        self._values.clear()
        self._values.update(state)


class LoaderState:
    """The position of a loader that keeps its own state: one per rank, for the same number of ranks.

    torchdata saves the state that a sampler's generator had before it drew the epoch's order. The loader draws from it
    afterwards, for the order and its workers' seeds, and this decides the order of later epochs. So the current state
    of each generator is saved beside the position. Making it raises ValueError for a random order that no state
    contains.
    """

    def __init__(self, loader: Stateful, world_size: int) -> None:
        _check_order_is_kept(loader)
        self._loader = loader
        self._world_size = world_size
        self.is_over = False
        """Whether the loader has yielded all batches of the epoch under way."""
        self._resumed_over = False

    def begin(self) -> bool:
        """Return whether to iterate over the loader: False once after a resume at an epoch's end.

        A loader at its end, such as torchdata's, would yield the next epoch's batches.
        """
        is_empty, self._resumed_over = self._resumed_over, False
        self.is_over = is_empty
        return not is_empty

    def start_epoch(self) -> None:
        """Begin another epoch."""
        self.is_over = self._resumed_over = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the number of ranks, and the generators' states."""
        place = self._loader.state_dict()  # may begin the epoch, and draw
        drawn = {name: generator.get_state() for name, generator in _generators(self._loader).items()}
        return {"world_size": self._world_size, "state": place, "generators": drawn, "is_over": self.is_over}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError for a position of another number of ranks, or of a loader with other generators."""
        if state["world_size"] != self._world_size:
            raise ValueError(
                f"the loader's place is that of one of {state['world_size']} ranks, here are {self._world_size}: "
                "samples would be lost or come twice; resume with as many ranks, or give trainer.loader() the dataset, "
                "whose place fits any number of them"
            )
        drawn, here = set(state.get("generators", {})), set(_generators(self._loader))
        if "generators" in state and drawn != here:
            raise ValueError(
                f"the loader's place is that of one with {_listed(drawn)}, and this one has {_listed(here)}: later "
                "epochs would have another order; make the loader as it was"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._loader.load_state_dict(state["state"])
        self.is_over = self._resumed_over = state.get("is_over", False)
        if "generators" not in state:  # an older checkpoint
            return
        # Order: a StatefulDataLoader restores its position only when it is iterated, or asked for its state, and draws
        # from its generators meanwhile. So this happens first, and then the generators get their saved states.
        self._loader.state_dict()
        for name, generator in _generators(self._loader).items():
            generator.set_state(state["generators"][name])


def _generators(loader: object) -> dict[str, torch.Generator]:
    """Return the generators of the loader and its samplers, each once, by the attribute that holds it."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = {
        "generator": loader,
        "sampler.generator": getattr(loader, "sampler", None),
        "batch_sampler.generator": batch_sampler,
        "batch_sampler.sampler.generator": getattr(batch_sampler, "sampler", None),
    }
    found: dict[str, torch.Generator] = {}
    for name, holder in holders.items():
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not each for each in found.values()):
            found[name] = generator
    return found


def _check_order_is_kept(loader: object) -> None:
    """Raise ValueError for a random order that is not in the loader's state: a resume would draw another one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", getattr(loader, "sampler", None))
    draws = isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)
    generator = getattr(sampler, "generator", None)
    if not draws and not isinstance(generator, torch.Generator):
        return
    if not isinstance(batch_sampler, Stateful) and not (
        type(batch_sampler) is not BatchSampler and _iterates_with_state(sampler, generator)
    ):
        raise ValueError(
            f"this {type(loader).__name__} draws its order by {type(sampler).__module__}.{type(sampler).__name__}, "
            "which keeps it in no state: a resume would go on in another order, with samples lost and others twice. "
            "Give it shuffle=True, or a sampler and batch_sampler with state_dict, such as those of "
            "torchdata.stateful_dataloader.sampler; or give trainer.loader() the dataset"
        )


def _iterates_with_state(sampler: Any, generator: object) -> bool:
    """Return whether the sampler, or its iterator, has a state; leave its generator unchanged."""
    if isinstance(sampler, Stateful):
        return True
    before = generator.get_state() if isinstance(generator, torch.Generator) else None
    is_stateful = isinstance(iter(sampler), Stateful)
    if before is not None:
        generator.set_state(before)  # type: ignore[attr-defined]
    return is_stateful


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no generator"


def _named(optimizer: Optimizer, model: nn.Module, *, on_change: OnChange, logs: bool) -> NamedOptimizer:
    if is_sharded(optimizer):
        return ShardedOptimizer(optimizer, model, on_change=on_change, logs=logs)
    return NamedOptimizer(optimizer, model, on_change=on_change, logs=logs)


def _scheduled(part: Any, of_optimizers: Sequence[OptimizerSchedules]) -> Any:
    """Return a schedule wrapped with the options of its optimizer; any other part unchanged."""
    if isinstance(part, LRScheduler):
        # Compare parameter groups: an optimizer may wrap the one that the schedule knows.
        scheduled = {id(group) for group in part.optimizer.param_groups}
        for each in of_optimizers:
            if scheduled & {id(group) for group in each.optimizer.optimizer.param_groups}:
                return each.part(part)
    return part


def _numbered(name: str, parts: Sequence[Any]) -> dict[str, Stateful]:
    if len(parts) == 1:
        return {name: parts[0]}
    return {f"{name}-{number}": part for number, part in enumerate(parts)}
