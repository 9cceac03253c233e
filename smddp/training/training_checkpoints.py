"""The checkpoints and stops of one loop: what a checkpoint contains, over all models that the loop trains.

When to save and when to stop is decided in `smddp.training.save_schedule`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from smddp.checkpoint.restore.optimizers import NamedOptimizer
from smddp.checkpoint.run_state import Stateful
from smddp.distributed import Membership
from smddp.job import Job
from smddp.metrics import RunningMean
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.save_schedule import SaveSchedule
from smddp.training.state_parts import state_parts
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData

logger = logging.getLogger(__name__)


class TrainingCheckpoints:
    """Save and resume the models of one loop, the position in its data, and the user's state.

    A part of ``state`` that is a TrainingCheckpoints too belongs to an inner Trainer: its models and its state become
    parts of this one, such as ``generator-model``, and it never saves or stops by itself. ``why_not_inner`` says why
    this one can't become such a part. All ranks call its methods at the same points.
    """

    def __init__(
        self,
        job: Job,
        membership: Membership,
        policy: CheckpointPolicy,
        model: TrainedModel,
        data: TrainingData,
        state: Mapping[str, Stateful | dict[str, Any] | TrainingCheckpoints],
        *,
        why_not_inner: str | None,
    ) -> None:
        self.models = {"": model}
        """The models that the loop trains: its own, and those of inner Trainers by their names in ``state``."""
        self._progress = model.progress
        self._data = data
        self._per_rank: dict[str, Stateful] = {}
        self._why_not_inner = why_not_inner
        self._is_inner = False
        self._is_main = membership.cluster.is_main
        extra: dict[str, Stateful | dict[str, Any]] = {}
        for name, part in state.items():
            extra |= self._take_over(name, part) if isinstance(part, TrainingCheckpoints) else {name: part}
        self._per_rank |= model.per_rank_state
        self.state = state_parts(
            model.module,
            model.optimizers,
            model.schedulers,
            model.scaler,
            extra,
            own=model.own_state,
            on_change=policy.on_change,
            logs=self._is_main,
        )
        self.named_optimizers = [part for part in self.state.values() if isinstance(part, NamedOptimizer)]
        self._running_means = [part for part in self.state.values() if isinstance(part, RunningMean)]
        self.schedule = SaveSchedule(
            job,
            membership,
            policy,
            self._progress,
            before_save=self._before_save,
            has_other_weights=lambda: any(model.has_other_weights for model in self.models.values()),
            stall=nullcontext if model.timer is None else partial(model.timer.phase, "checkpoint"),
        )

    def _take_over(self, name: str, inner: TrainingCheckpoints) -> dict[str, Stateful]:
        """Return the state of an inner Trainer, and save its models here."""
        if inner._is_inner or inner.schedule.has_started:
            raise ValueError("a Trainer in state= must be new: give it to one other, before it resumes or trains")
        if inner._why_not_inner is not None:
            raise ValueError(inner._why_not_inner)
        inner._is_inner = True
        inner.schedule.leave_to_another()
        self.models |= {f"{name}-{key}" if key else name: model for key, model in inner.models.items()}
        inner.models = {}
        self._per_rank |= {f"{name}-{key}": part for key, part in inner._per_rank_state().items()}
        return {f"{name}-{key}": part for key, part in {**inner.state, "progress": inner._progress}.items()}

    def check_outer(self) -> None:
        """Raise ValueError if another loop saves these models."""
        if self._is_inner:
            raise ValueError(
                "this Trainer is kept in state= of another one, whose loop it steps in: call the loader, resume, save, "
                "epochs, steps_to, batches and finish_if of that one"
            )

    def resume(self) -> bool:
        """Load the newest valid checkpoint, and save there from now on; return False if there is none.

        Raise as `Trainer.resume`, and ValueError if another loop saves these models.
        """
        self.check_outer()
        is_resumed = self.schedule.resume(self.state, self._per_rank_state(), self._data.order)
        for model in self.models.values():
            model.restart()
        return is_resumed

    def after_step(self) -> float:
        """Save or stop if due, and return the step after which to call this again."""
        if self._is_inner:
            return math.inf
        if not self.schedule.has_started:
            self.schedule.begin_anew(self.state, self._per_rank_state(), self._data.order)
        self.schedule.after_step()
        return self.schedule.next_step

    def between_steps(self, *, evaluates: bool = False) -> None:
        """Ask all ranks whether to save or to stop; see `SaveSchedule.between_steps`."""
        if not self._is_inner:
            self.schedule.between_steps(evaluates=evaluates)

    def save_and_leave(self) -> None:
        """Make the current state durable, and save no more."""
        self.schedule.save()
        self.schedule.finish()
        self.schedule.leave()

    def note_weights(self) -> None:
        """Remember the norms of the weights, which an evaluation may exchange from now on."""
        for model in self.models.values():
            model.note_weights()

    def _per_rank_state(self) -> dict[str, Stateful]:
        return {**self._per_rank, **self._data.per_rank_state}

    def _before_save(self) -> None:
        for model in self.models.values():
            model.before_save()
        for mean in self._running_means:
            mean.share()
        for name, model in self.models.items():
            if name and model.optimizer_step.micro_batch and self._is_main:
                logger.warning(
                    "a checkpoint leaves out %d micro-batches of the step that the Trainer %r in state= has under way. "
                    "A resume takes that step without them: let it take whole steps in each step of the other trainer",
                    model.optimizer_step.micro_batch,
                    name,
                )
