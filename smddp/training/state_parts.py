"""The parts of a trainer's checkpoint, by name: the model, its optimizers, and the user's own state."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.restore.optimizers import NamedOptimizer
from smddp.checkpoint.restore.schedules import OptimizerSchedules
from smddp.checkpoint.restore.script_options import OnChange
from smddp.checkpoint.restore.sharded_optimizer import ShardedOptimizer, is_sharded
from smddp.checkpoint.run_state import Stateful, check_parts

logger = logging.getLogger(__name__)

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
