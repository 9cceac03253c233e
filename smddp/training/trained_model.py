"""A model that is trained: a loss goes in, an optimizer step comes out.

It knows neither where the data comes from, nor when anything is saved or shown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.parts.sharded_optimizer import is_sharded
from smddp.checkpoint.run_state import Stateful
from smddp.display_text import counted
from smddp.distributed import (
    DDPOptions,
    Membership,
    PowerSGD,
    Replica,
    ReplicaCheck,
    Sharded,
    ShardedModel,
    data_rank_of,
    divide_copy,
    has_shards,
    prepare_weights,
)
from smddp.distributed.first_failure import SAME_STEPS
from smddp.dtensor import whole_values
from smddp.metrics import StepTimer
from smddp.metrics.device_use import StepFlops
from smddp.process.heartbeat import Heartbeat
from smddp.training.argument_checks import check_options_agree, optimizer_options
from smddp.training.ema import ExponentialMovingAverage
from smddp.training.evaluation_mode import EvaluationMode
from smddp.training.model_checks import (
    check_added_parameters,
    check_comm_hook,
    check_common_pieces,
    check_optimizers,
    check_scaled_meshes,
    check_scaled_weights,
    check_schedulers,
    check_sharded,
    check_sharded_optimizers,
    underlying_module,
)
from smddp.training.model_weights import ModelWeights
from smddp.training.nonfinite import NonfiniteGuard, OnNonfinite
from smddp.training.optimizer_step import EpochSchedules, OptimizerStep, ScheduleEach
from smddp.training.outside_gradients import OutsideGradients
from smddp.training.precision import Precision, PrecisionName
from smddp.training.progress import Progress
from smddp.training.schedule_unit import warn_of_other_unit
from smddp.training.step_loss import ItemWeights, StepLoss, refused_loss

logger = logging.getLogger(__name__)


class TrainedModel:
    """One model with its optimizers, on each rank; all ranks call its methods at the same points.

    Call ``model``: it is ``module`` in its precision, and with several ranks its DDP replica, or its sharded model. All
    ranks begin with rank 0's weights. ``beside`` returns the parameters that checkpoints contain beside the model's.
    ``save`` makes the current state durable, for ``on_nonfinite="stop"``.
    ``samples`` returns the indices of the samples in a micro-batch of the step. The other arguments, and the errors,
    are the same as for `Trainer`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        membership: Membership,
        *,
        schedule_each: ScheduleEach,
        precision: PrecisionName,
        accumulate: int,
        clip_norm: float | None,
        clip_value: float | None,
        ema: float | None,
        on_nonfinite: OnNonfinite | None,
        rewinds: int,
        check_replicas: int | None,
        beside: Callable[[], Sequence[Tensor]],
        save: Callable[[], None],
        samples: Callable[[int], Sequence[int]],
        move_model: bool,
        parallel: DDPOptions | Sharded,
        timing: bool,
    ) -> None:
        world_size, self._logs = membership.cluster.world_size, membership.cluster.is_main
        self.progress = Progress()
        self.optimizers, self.schedulers = optimizers, schedulers
        self.module = underlying_module(model, world_size)
        check_optimizers(optimizers, self.module, beside, world_size=world_size)
        is_divided = has_shards(self.module)
        if (share := data_rank_of(self.module, membership.cluster)) is not None:
            membership = replace(membership, data_parallel=share)
            if self._logs:
                logger.info(
                    "by tensor parallelism, %d ranks compute together on each of %s of the data",
                    world_size // share.size,
                    counted(share.size, "share"),
                )
        self.membership = membership
        """Under tensor parallelism, with the share of the data that this rank shares with others."""
        self.device = membership.device if move_model else next(self.module.parameters()).device
        numbers = Precision(precision, self.device)
        if precision == "auto" and self._logs:
            _log_precision(numbers.name, self.device.type)
        is_asked = isinstance(parallel, Sharded)
        self.is_divided = is_asked or is_divided or any(map(is_sharded, optimizers))
        """Whether the ranks divide weights or optimizer states; also True on one rank, if several would."""
        self.moves = move_model and not is_divided
        """Whether the Trainer places the model. If False, the script places it."""
        if is_asked or is_divided:  # on one rank, too, so that a trial there finds what several refuse
            check_sharded(model, optimizers, numbers, parallel, is_divided=is_divided, ema=ema, move_model=move_model)
        shards = is_asked and world_size > 1
        moves = move_model and not (shards or is_divided)  # sharding moves the model, a layer at a time
        target = self.device if moves else None
        check_sharded_optimizers(optimizers, self.module, device=target, world_size=world_size)
        check_schedulers(schedulers, schedule_each, optimizers)
        check_options_agree(  # before the first collective of the model
            membership,
            optimizer=optimizer_options(optimizers),
            scheduler=[type(each).__name__ for each in schedulers],
            precision=numbers.name,
            schedule_each=schedule_each,
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            ema=ema,
            on_nonfinite=on_nonfinite,
            rewinds=rewinds,
            check_replicas=check_replicas,
            parallel=parallel,
        )
        outline = prepare_weights(parallel, self.module, optimizers, membership, device=target, copies=ema is not None)
        if is_divided:
            check_common_pieces(self.module, membership)
        comm_hook = parallel.comm_hook if isinstance(parallel, DDPOptions) else None
        check_comm_hook(comm_hook, numbers, on_nonfinite)
        self.scaler = numbers.scaler()
        if self.scaler is not None:
            check_scaled_weights(self.module, precision)
            check_scaled_meshes(share, precision)
        self.model = numbers.wrap(model)
        self.timer: StepTimer | None = None
        """Measures the parts of a step; None without ``timing``."""
        if timing:
            self.timer = StepTimer(self.device, flops=StepFlops(model, self.device, numbers.dtype, logs=self._logs))
        self.guard: NonfiniteGuard | None = None
        """Looks at each step's gradients; None without ``on_nonfinite``."""
        if on_nonfinite is not None:
            self.guard = NonfiniteGuard(
                self.module,
                membership,
                on_nonfinite,
                steps=lambda: self.progress.steps,
                save=save,
                samples=samples,
                compare=lambda: self._compare_replicas(self.progress.steps),
                has_scaler=self.scaler is not None,
                rewinds=rewinds,
            )
        self._epoch_schedules = EpochSchedules(schedulers) if schedule_each == "epoch" else None
        self.optimizer_step = OptimizerStep(
            optimizers,
            schedulers=schedulers if self._epoch_schedules is None else [self._epoch_schedules],
            scaler=self.scaler,
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            guard=self.guard,
            tells_applied=ema is not None,
            timer=self.timer,
        )
        if model is not self.module and self._logs:
            _log_compile_time(model, self.optimizer_step)
        self._replica: Replica | ShardedModel | None = None
        step = self.optimizer_step
        accumulates = None if accumulate == 1 else lambda: step.accumulates
        if shards or is_divided:
            self.model = self._replica = ShardedModel(self.model, self.module, membership, accumulates=accumulates)
        elif world_size > 1:
            assert isinstance(parallel, DDPOptions)
            self.model = self._replica = Replica(self.model, membership, accumulates=accumulates, options=parallel)
        self._powersgd: PowerSGD | None = None
        if comm_hook == "powersgd":  # on one rank too, so that several can resume from its checkpoint
            assert isinstance(parallel, DDPOptions)
            of_replica = self._replica.powersgd if isinstance(self._replica, Replica) else None
            self._powersgd = of_replica or PowerSGD(parallel, membership)
        # Order: after the replica, which gives all ranks rank 0's weights. The average is a copy of those.
        self._average: ExponentialMovingAverage | None = None
        self.ema: nn.Module | None = None
        if ema is not None:
            self._average = ExponentialMovingAverage(self.module, ema, outline)
            self.ema = numbers.wrap(self._average.module)
            if outline is not None and isinstance(parallel, Sharded):
                divide_copy(parallel, self._average.module, self.module, self.device)
                self.ema = ShardedModel(self.ema, self._average.module, membership)
            self.ema.eval()
        self._check_every = check_replicas
        self._replica_check: ReplicaCheck | None = None
        if check_replicas is not None and isinstance(self._replica, Replica):
            average = None if self._average is None else self._average.module
            self._replica_check = ReplicaCheck(self._replica, self.module, membership, average)
        self._weights = ModelWeights(self.module, membership)
        self._loss = StepLoss(membership, self._weights)
        self._has_compared = False  # the first loss, before a checkpoint can contain its step
        self._items = ItemWeights(membership, self.device, accumulate, self.progress)
        self._optimized = self.optimizer_step.parameters()
        self._outside_gradients = OutsideGradients(self.optimizer_step, logs=self._logs)
        self._evaluation_mode = EvaluationMode(self.module, logs=self._logs)

    @property
    def own_state(self) -> dict[str, Stateful]:
        """The parts of a checkpoint beside module, optimizers, schedules and scaler; the same on all ranks."""
        parts: dict[str, Stateful | None] = {"ema": self._average, "epoch_schedules": self._epoch_schedules}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def per_rank_state(self) -> dict[str, Stateful]:
        """The parts of a checkpoint that differ between ranks."""
        return {} if self._powersgd is None else {"powersgd": self._powersgd}

    def restart(self) -> None:
        """Forget the micro-batches of an unfinished step."""
        self.optimizer_step.restart()
        if isinstance(self._replica, ShardedModel):
            self._replica.restart()
        self._loss.restart()
        self._items.restart()

    def step(self, loss: Tensor, share: float, *, items: Tensor | float | None, collect: bool) -> bool:
        """Add the gradients of one micro-batch's loss; after the last one, take the step and return True.

        ``share`` is the loss's weight by the order of the data: 0 for a rank that repeats a sample only to take part.
        ``items`` is the number of items in the loss's mean, or None. ``collect`` says that ``mean_loss`` will be called
        after this step. Raises ValueError if the loss has no gradient or is no scalar, or the ranks would not average
        the gradients, TypeError if the loss is a number.
        """
        if not isinstance(loss, Tensor) or not loss.requires_grad or loss.numel() != 1:
            raise refused_loss(loss, self.optimizer_step.parameters())
        loss = whole_values(loss)  # a DTensor under tensor parallelism's loss_parallel
        if self.timer is not None:
            self.timer.mark("forward")
        replica, step = self._replica, self.optimizer_step
        if step.micro_batch == 0:
            self._outside_gradients.look()
            self._evaluation_mode.look()
        if replica is not None and not step.accumulates:
            if not replica.averages:
                raise ValueError(
                    "the ranks' gradients would not be averaged: compute each loss by trainer.model(...), after the "
                    "trainer.step() of the loss before it"
                )
            self._check_optimized()
        weight: Tensor | float = share
        if items is not None:
            step.correction = self._items.correction
            weight = self._items.weigh(items if share else 0)
        if not self._has_compared:
            self._has_compared = True
            self._loss.check_same(loss.detach())
        self._loss.add(loss, weight, collect=collect)
        is_done = step.backward_and_step(loss, weight)
        if is_done:
            self._after_step()
        return is_done

    def finish_window(self) -> bool:
        """Take the step under way with fewer micro-batches, because the epoch has ended; return whether there is one.

        The gradient is the mean over the micro-batches of all ranks, which may have different numbers of them.
        Collective. Raise ValueError on every rank if some ranks have no micro-batch.
        """
        step = self.optimizer_step
        if step.accumulate == 1:
            return False
        taken = self.membership.ranks.gather(lambda: step.micro_batch)
        if not any(taken):
            return False
        if not all(taken):
            raise ValueError(
                f"unequal steps: the epoch has ended with micro-batches of optimizer step {self.progress.steps + 1} on "
                f"rank {taken.index(max(taken))}, and with none on rank {taken.index(0)}. {SAME_STEPS}"
            )
        if self._replica is not None:
            self._replica.average_gradients()
        step.finish_window(sum(taken) / len(taken))
        self._after_step()
        return True

    def begin_epochs(self, epochs: int, steps_per_epoch: int | None) -> None:
        """Look whether the schedules fit a training of so many epochs, if the optimizer steps of an epoch are known."""
        if self._logs and steps_per_epoch is not None:
            each: ScheduleEach = "step" if self._epoch_schedules is None else "epoch"
            warn_of_other_unit(self.schedulers, each, epochs=epochs, steps_per_epoch=steps_per_epoch)

    def end_epoch(self) -> None:
        """Count the epoch, and step the schedules that go by epochs."""
        if self._epoch_schedules is not None:
            self._epoch_schedules.end_epoch()
        self.progress.epoch += 1

    def mean_loss(self) -> float:
        """Return the mean loss of the last step over the ranks; collective."""
        return self._loss.mean(self._items.loss_factor)

    def check_loss(self, loss: float) -> None:
        """Raise TrainingDivergedError if a weight is not finite, or if the loss scaler skips all steps.

        The weights are checked only if the mean ``loss`` is not finite.
        """
        self._loss.check_finite(self.progress.steps, loss)
        self.optimizer_step.check_scale(self.progress.steps)

    def check_weights(self) -> None:
        """Raise TrainingDivergedError if some weights are not finite, or the loss scaler skips all steps."""
        self._weights.check_finite(self.progress.steps)
        self.optimizer_step.check_scale(self.progress.steps)

    def before_save(self) -> None:
        """Prepare a save; collective.

        Raise ReplicasDifferError if the ranks' weights differ, and TrainingDivergedError if some are not finite.
        """
        if self._replica is not None:
            self._replica.follow()  # all ranks get rank 0's values of layers added since the last forward pass
            # Order: compare first. NaN on one rank alone would leave the others waiting; and sharing hides differences.
            self._compare_replicas(self.progress.steps)
            self._replica.share_buffers()  # each rank writes a part of the checkpoint
        self._divide()
        self.check_weights()
        self._weights.warn_of_other_shapes()

    def note_weights(self) -> None:
        """Remember the current weights, between two steps."""
        self._divide()
        self._weights.note()

    @property
    def has_other_weights(self) -> bool:
        """Whether the weights differ from the last ``note_weights``, as in the evaluation of an average.

        It waits for the GPU.
        """
        if not self._weights.are_noted:
            return False
        self._divide()
        return self._weights.are_exchanged()

    def _divide(self) -> None:
        """Reshard the weights that a forward pass without a backward pass has left gathered."""
        for each in (self._replica, self.ema):
            if isinstance(each, ShardedModel):
                each.divide()

    def _compare_replicas(self, step: int) -> None:
        if self._replica_check is not None:
            self._replica_check.compare(step)

    def _check_optimized(self) -> None:
        """Check that parameters added to an optimizer are the model's: the ranks average no other gradients."""
        weights = self.optimizer_step.parameters()
        if list(map(id, weights)) != list(map(id, self._optimized)):
            known = set(map(id, self._optimized))
            check_added_parameters([weight for weight in weights if id(weight) not in known], self.module)
            self._optimized = weights

    def _after_step(self) -> None:
        self._weights.forget()
        if self._replica is not None:
            self._replica.averages = False
            step = self.progress.steps + 1
            if self._check_every is not None and step % self._check_every == 0:
                self._replica.follow()
                self._compare_replicas(step)  # before sharing, which hides differences
            self._replica.share_buffers()
        if self._average is not None and self.optimizer_step.applied:
            self._divide()
            self._average.update_parameters(self.module)
        self.progress.steps += 1


@cache
def _log_precision(name: str, device: str) -> None:
    """Log what ``precision="auto"`` is, once: other models of the process are on the same device."""
    logger.info('computing in %s: precision="auto" on a %s', name, "GPU" if device == "cuda" else device.upper())


def _log_compile_time(compiled: nn.Module, step: OptimizerStep) -> None:
    """Log the time from the first forward pass of a compiled model to its first optimizer step.

    Call it before the model's first forward pass. A later recompilation, for another batch shape, is not logged.
    """
    started = 0.0
    heartbeat = Heartbeat("compiling")

    def begin(*_: Any) -> None:
        nonlocal started
        started = time.perf_counter()
        heartbeat.start()
        on_forward.remove()

    def end() -> None:
        step.before_clearing.remove(end)
        heartbeat.stop()
        if started:
            logger.info("compiled in %.1f s, the first step included", time.perf_counter() - started)

    on_forward = compiled.register_forward_pre_hook(begin)
    step.before_clearing.append(end)
