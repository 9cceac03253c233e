"""What a trainer's checkpoint holds, by name: the model, its optimizers, and what the user keeps beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.restore.optimizers import NamedOptimizer
from smddp.checkpoint.restore.restoring import Stateful, check_parts
from smddp.checkpoint.restore.schedules import OptimizerSchedules
from smddp.checkpoint.restore.script_options import OnChange
from smddp.checkpoint.restore.sharded_optimizer import ShardedOptimizer, is_sharded

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
    speaks: bool,
) -> dict[str, Stateful]:
    """Return the parts by name.

    Several optimizers are ``optimizer-0``, ``optimizer-1`` and so on, and several schedules likewise.

    Args:
        model: The model itself.
        optimizers: Of its parameters.
        schedulers: Of these optimizers.
        scaler: The loss scaler, if there is one.
        extra: The user's parts by name.
        own: Further parts of the trainer's own, by name.
        on_change: Whose options optimizers and schedules have after a resume.
        speaks: Whether this rank tells of it in the log.

    Raises:
        ValueError: A name of ``extra`` is taken or not possible.
        TypeError: A part of ``extra`` has no state.
    """
    named = [_named(each, model, on_change=on_change, speaks=speaks) for each in optimizers]
    trained: dict[str, Stateful] = {"model": model, **_numbered("optimizer", named)}
    of_optimizers = [OptimizerSchedules(each, on_change=on_change, speaks=speaks) for each in named]
    trained |= _numbered("scheduler", [_scheduled(each, of_optimizers) for each in schedulers])
    if scaler is not None:
        trained["scaler"] = scaler
    if taken := sorted(name for name in extra if name in _OWN or name in trained or name in own):
        raise ValueError(f"state has {', '.join(taken)}: the trainer's own parts have these names; choose others")
    parts = {
        name: DictState(part) if isinstance(part, dict) else _scheduled(part, of_optimizers)
        for name, part in extra.items()
    }
    check_parts(parts, {})
    return {**trained, **own, **parts}


def with_parts_of_kept(
    extra: Mapping[str, Any],
    kind: type[_Trainer],
    parts_of: Callable[[_Trainer], tuple[Mapping[str, Stateful], Mapping[str, Stateful]]],
) -> tuple[dict[str, Stateful | dict[str, Any]], dict[str, Stateful]]:
    """Return the user's state with the parts of each trainer in it, such as ``generator-model``, in its place.

    Args:
        extra: The user's state by name.
        kind: The trainers'.
        parts_of: Gives a trainer's parts: those that are the same on all ranks, and those of each rank.

    Returns:
        The state, and what each rank has its own of.
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

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return copy.deepcopy(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the dict's items."""
        self._values.clear()
        self._values.update(state)


class LoaderState:
    """The place of a loader that keeps its own state: this rank's place, for the same number of ranks.

    Args:
        loader: It has ``state_dict`` and ``load_state_dict``.
        world_size: How many ranks share the data.
    """

    def __init__(self, loader: Stateful, world_size: int) -> None:
        self._loader = loader
        self._world_size = world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and of how many ranks it is one."""
        return {"world_size": self._world_size, "state": self._loader.state_dict()}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """See that the place is one of as many ranks.

        Raises:
            ValueError: It is of another number of ranks.
        """
        if state["world_size"] != self._world_size:
            raise ValueError(
                f"the loader's place is that of one of {state['world_size']} ranks, here are {self._world_size}: "
                "samples would be lost or come twice; resume with as many ranks, or give trainer.loader() the dataset, "
                "whose place fits any number of them"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place."""
        self._loader.load_state_dict(state["state"])


def _named(optimizer: Optimizer, model: nn.Module, *, on_change: OnChange, speaks: bool) -> NamedOptimizer:
    if is_sharded(optimizer):
        return ShardedOptimizer(optimizer, model, on_change=on_change, speaks=speaks)
    return NamedOptimizer(optimizer, model, on_change=on_change, speaks=speaks)


def _scheduled(part: Any, of_optimizers: Sequence[OptimizerSchedules]) -> Any:
    """Return a schedule of one of the optimizers with its options; any other part as it is."""
    if isinstance(part, LRScheduler):
        # By its groups: an optimizer may wrap the one that the schedule knows.
        scheduled = {id(group) for group in part.optimizer.param_groups}
        for each in of_optimizers:
            if scheduled & {id(group) for group in each.optimizer.optimizer.param_groups}:
                return each.part(part)
    return part


def _numbered(name: str, parts: Sequence[Any]) -> dict[str, Stateful]:
    if len(parts) == 1:
        return {name: parts[0]}
    return {f"{name}-{number}": part for number, part in enumerate(parts)}
