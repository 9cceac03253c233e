"""What a checkpoint of a training contains: the parts of all models that one loop trains, and the script's own state.

`smddp.training.training_run` saves and loads them; `smddp.training.save_schedule` decides when.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.parts.optimizers import NamedOptimizer
from smddp.checkpoint.parts.schedules import OptimizerSchedules
from smddp.checkpoint.parts.script_options import OnChange
from smddp.checkpoint.parts.sharded_optimizer import ShardedOptimizer, is_sharded
from smddp.checkpoint.run_state import Stateful, check_parts
from smddp.data.order import DataOrder
from smddp.metrics import RunningMean
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData

logger = logging.getLogger(__name__)

_OWN = ("model", "optimizer", "scheduler", "scaler", "position", "progress", "loader", "powersgd")


class TrainingParts:
    """The parts of a checkpoint of one training: its models, its position in the data, and the user's state.

    A value of ``state`` that is a TrainingParts belongs to an inner Trainer: its models and its state become parts of
    this one, such as ``generator-model``. All ranks call the methods at the same points.
    """

    def __init__(
        self,
        model: TrainedModel,
        data: TrainingData,
        state: Mapping[str, Stateful | dict[str, Any] | TrainingParts],
        *,
        on_change: OnChange,
        logs: bool,
    ) -> None:
        self.models = {"": model}
        """The models that the loop trains: its own, and the models of inner Trainers, by their names in ``state``."""
        self.progress = model.progress
        self._data = data
        self._per_rank: dict[str, Stateful] = {}
        self._logs = logs
        extra: dict[str, Stateful | dict[str, Any]] = {}
        for name, part in state.items():
            extra |= self._take_over(name, part) if isinstance(part, TrainingParts) else {name: part}
        self._per_rank |= model.per_rank_state
        self.state = state_parts(
            model.module,
            model.optimizers,
            model.schedulers,
            model.scaler,
            extra,
            own=model.own_state,
            on_change=on_change,
            logs=logs,
        )
        """The parts that are the same on all ranks, by name, except progress and position."""
        self.named_optimizers = [part for part in self.state.values() if isinstance(part, NamedOptimizer)]
        self._running_means = [part for part in self.state.values() if isinstance(part, RunningMean)]
        if model.membership.data_parallel is not None:
            for mean in self._running_means:
                mean.membership = model.membership

    def _take_over(self, name: str, inner: TrainingParts) -> dict[str, Stateful]:
        """Return the state of an inner Trainer, and save its models here."""
        self.models |= {f"{name}-{key}" if key else name: model for key, model in inner.models.items()}
        inner.models = {}
        self._per_rank |= {f"{name}-{key}": part for key, part in inner.per_rank_state().items()}
        return {f"{name}-{key}": part for key, part in {**inner.state, "progress": inner.progress}.items()}

    @property
    def order(self) -> DataOrder | None:
        """The order of the training data, with the position in it; None without a training loader of the Trainer."""
        return self._data.order

    def per_rank_state(self) -> dict[str, Stateful]:
        """Return the parts that each rank has for itself, by name."""
        return {**self._per_rank, **self._data.per_rank_state}

    def position_parts(self) -> list[str]:
        """Return the names of the parts that hold the position in the data, which a rewind keeps."""
        return ["position", *self._data.per_rank_state]

    def has_other_weights(self) -> bool:
        """Return whether a model's weights differ from the last step's, as in the evaluation of an average."""
        return any(model.has_other_weights for model in self.models.values())

    def note_weights(self) -> None:
        """Remember the norms of the weights, which an evaluation may exchange from now on."""
        for model in self.models.values():
            model.note_weights()

    def restart(self) -> None:
        """Forget the micro-batches of unfinished steps, after a load."""
        for model in self.models.values():
            model.restart()

    def before_save(self) -> None:
        """Prepare a save; raise an error if nothing should be saved."""
        for model in self.models.values():
            model.before_save()
        for mean in self._running_means:
            mean.share()
        for name, model in self.models.items():
            if name and model.optimizer_step.micro_batch and self._logs:
                logger.warning(
                    "a checkpoint leaves out %d micro-batches of the step that the Trainer %r in state= has under way. "
                    "A resume takes that step without them: let it take whole steps in each step of the other trainer",
                    model.optimizer_step.micro_batch,
                    name,
                )


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
    """Return the parts of a checkpoint that are the same on all ranks, by name.

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
        name: _DictState(name, part, logs=logs) if isinstance(part, dict) else _scheduled(part, of_optimizers)
        for name, part in extra.items()
    }
    check_parts(parts, {})
    return {**trained, **own, **parts}


class _DictState:
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
