"""The thin loop: the parts of a training loop around model and data that every script repeats.

The loop stays the user's. The trainer moves the model to its device, replicates it over the ranks, computes in mixed
precision, accumulates and clips gradients, steps optimizer and schedule, keeps the position in the data, saves
checkpoints, resumes from them, and stops when the job is told to::

    trainer = smddp.Trainer(job, model, optimizer, accumulate=2, clip_norm=1.0)
    loader = trainer.loader(dataset, batch_size=256)
    for epoch in trainer.epochs(10):
        for images, labels in trainer.batches(loader):
            loss = cross_entropy(trainer.model(images), labels)
            trainer.step(loss)
    trainer.save_model()

All ranks must run the same loop: every rank makes the loaders and calls every method. Only ``log`` may be called by one
rank alone.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from smddp.checkpoint.restore.optimizers import NamedOptimizer
from smddp.checkpoint.run_state import Stateful, capture_random_state, restore_random_state
from smddp.checkpoint.save.attempt import as_numbers
from smddp.data.build_order import AnyDataset, OrderOptions
from smddp.data.loaders import DataLoaderOptions, Loaders, StatefulLoader
from smddp.data.order.data_order import Tail
from smddp.data.order.host_sharding import OnChange
from smddp.distributed import (
    DDPOptions,
    PowerSGD,
    current_membership,
    gather_over_ranks,
    join,
    sum_numbers_over_ranks,
    sum_over_ranks,
)
from smddp.job import MAX_STEPS_VARIABLE, Job
from smddp.job.saved_model import write_model
from smddp.metrics import Profile, RunningMean, StepTimer
from smddp.metrics.device_use import StepFlops
from smddp.metrics.lines import check_names
from smddp.metrics.profile import StepProfiler
from smddp.metrics.running_mean import Reduce, check_reduce, over_ranks
from smddp.metrics.tracking import Tracker
from smddp.training.active_runs import OpenRun
from smddp.training.argument_checks import (
    check_bounds,
    check_counts,
    check_kinds,
    check_options_agree,
    optimizer_options,
)
from smddp.training.batches import BatchStreams, Loop, check_shares, outlive_stop
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.compile_time import log_compile_time
from smddp.training.model_checks import (
    check_clipping,
    check_comm_hook,
    check_optimizers,
    check_scaled_weights,
    check_schedulers,
    check_sharded_optimizers,
    underlying_module,
    why_not_kept,
)
from smddp.training.model_step import ModelStep
from smddp.training.nonfinite import NonfiniteGuard, OnNonfinite
from smddp.training.optimizer_step import EpochSchedules, OptimizerStep, ScheduleEach
from smddp.training.precision import Precision, PrecisionName, without_precision
from smddp.training.run_view import RunView
from smddp.training.save_schedule import SaveSchedule
from smddp.training.state_parts import LoaderState, state_parts, with_parts_of_kept
from smddp.training.step_report import StepReport

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")

_DEFAULT_POLICY = CheckpointPolicy()
_DEFAULT_DDP = DDPOptions()
_NOTHING_LEFT = "nothing is left to train; take another run directory or checkpoint_s3_uri to begin anew, or"


class Trainer:
    """Trains one model with one optimizer on all ranks of a job.

    The trainer seeds only the order of the data: `smddp.seed_everything` seeds the rest. With several ranks, all start
    from the weights of rank 0.

    Attributes:
        model: The model to call in the loop, in its precision, replicated over the ranks. Under ``torch.no_grad`` it is
            the rank's own copy, and waits for no other rank.
        module: The original model, on its device.
        device: The device of the model, to which ``batches`` moves the data.
        ema: The moving average of the model, in its precision and in evaluation mode, or None. It is updated after each
            optimizer step that was applied, BatchNorm's statistics included, and is part of each checkpoint.

    Examples:
        A whole training::

            trainer = smddp.Trainer(job, model, optimizer, precision="auto", accumulate=2)
            loader = trainer.loader(train, batch_size=256)  # of all ranks together
            for epoch in trainer.epochs(5):  # a resume continues with the interrupted epoch
                for inputs, labels in trainer.batches(loader):  # and with its next batch
                    trainer.step(cross_entropy(trainer.model(inputs), labels))
                trainer.log(accuracy=evaluate(trainer, test))
            trainer.save_model()
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        schedule_each: ScheduleEach = "step",
        precision: PrecisionName = "auto",
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
        on_nonfinite: OnNonfinite | None = None,
        checkpoints: CheckpointPolicy = _DEFAULT_POLICY,
        seed: int = 0,
        log_every: int = 50,
        state: Mapping[str, Stateful | dict[str, Any] | Trainer] | None = None,
        name: str | None = None,
        move_model: bool = True,
        ddp: DDPOptions = _DEFAULT_DDP,
        trackers: Sequence[Tracker] = (),
        progress: bool = True,
        timing: bool = False,
        profile: Profile | None = None,
        place: bool | None = None,
    ) -> None:
        """Prepare the model; join the process group unless the process has joined already.

        Args:
            job: The job, with its directories and ranks.
            model: The model itself, or ``torch.compile`` of it; it is moved to the rank's device.
            optimizer: The optimizer of the model's parameters, or several that step together.
            scheduler: A schedule, or several, stepped after each optimizer step that was applied.
            schedule_each: ``"epoch"`` steps the schedules at the end of each epoch of ``epochs`` or ``steps_to``
                instead, before its checkpoint.
            precision: The precision of the forward pass; see `smddp.Precision`.
            accumulate: Micro-batches per optimizer step; the loss of each is divided by it.
            clip_norm: The largest norm of all gradients together, or None.
            clip_value: The largest absolute value of an element of a gradient, or None.
            ema: The decay of an exponential moving average of the weights, such as 0.999, kept as ``trainer.ema``; or
                None for no average.
            on_nonfinite: What to do with a step whose gradients are NaN or inf: ``"skip"`` the step, ``"raise"`` an
                error, or ``"stop"``: raise it after a checkpoint of the state before the step. This check waits for the
                GPU once a step. None checks only at metric lines and saves whether the weights are finite.
            checkpoints: When to save, and which checkpoints to keep; see `smddp.CheckpointPolicy`.
            seed: The seed of the order of the data.
            log_every: Optimizer steps from one metric line to the next.
            state: Further parts of each checkpoint, by name, the same on all ranks: an average of the weights, another
                model or optimizer, a schedule by a metric. Each part has ``state_dict`` and ``load_state_dict``, or is
                a dict of numbers and tensors. The trainer neither moves nor steps it. A part may be another Trainer
                that steps in this one's loop, such as a GAN's generator: it then has no checkpoints of its own, and
                ``timing`` and ``profile`` belong to this one.
            name: The name of this trainer in a job with several; its checkpoints and model get a directory of it.
            move_model: False leaves the model where it is, on one device or on several.
            ddp: How the ranks average their gradients; see `smddp.DDPOptions`.
            trackers: Objects on rank 0 that record hyperparameters, metrics, checkpoints and model, such as
                ``smddp.metrics.TensorBoard()``; see `smddp.metrics.Tracker`. JSON lines are always written, to
                ``metrics.jsonl`` in the job's output data directory.
            progress: Whether rank 0 shows a live line if stderr is a terminal: progress, speed and time left.
                ``SMDDP_PROGRESS=0`` turns it off, too.
            timing: Whether metric lines show the time spent since the last one, as shares of rank 0's time
                (``time_data``, ``time_forward``, ``time_backward``, ``time_optimizer``, ``time_checkpoint``,
                ``time_other``), the peak memory, and the operations a second; see `smddp.StepTimer`.
            profile: The steps to record with torch.profiler, for Perfetto; see `smddp.Profile`.
            place: Deprecated name of ``move_model``.

        Raises:
            ValueError: A number is out of range, the device can't compute in the precision, model and optimizer do not
                fit each other, or a name is not allowed.
            TypeError: An argument has the wrong type.
        """
        if place is not None:
            warnings.warn("Trainer(place=…) is named move_model= now", DeprecationWarning, stacklevel=2)
            move_model = place
        check_kinds(job=job, model=model, checkpoints=checkpoints, seed=seed, state=state, name=name, ddp=ddp)
        check_kinds(trackers=trackers, move_model=move_model, progress=progress, timing=timing, profile=profile)
        check_counts(accumulate=accumulate, log_every=log_every)
        check_bounds(clip_norm=clip_norm, clip_value=clip_value)
        check_clipping(clip_norm, clip_value)
        self._membership = current_membership() or join(job.cluster)
        self._cluster = self._membership.cluster
        job = dataclasses.replace(job, cluster=self._cluster)  # an adopted group may know more
        self._job = job if name is None else job.part(name)

        self.module = underlying_module(model)
        self.device = self._membership.device if move_model else next(self.module.parameters()).device
        optimizers, schedulers = _listed(optimizer), _listed(scheduler)
        check_sharded_optimizers(
            optimizers, self.module, device=self.device if move_model else None, world_size=self._cluster.world_size
        )
        if move_model:
            self.module.to(self.device)
        check_optimizers(optimizers, self.module, world_size=self._cluster.world_size)
        check_schedulers(schedulers, schedule_each, optimizers)
        if model is not self.module and self._cluster.is_main:
            log_compile_time(model, optimizers[0])
        numbers = Precision(precision, self.device)
        check_comm_hook(ddp.comm_hook, numbers, on_nonfinite)
        scaler = numbers.scaler()
        if scaler is not None:
            check_scaled_weights(self.module, precision)
        wrapped = numbers.wrap(model)
        self._timer: StepTimer | None = None
        if timing:
            flops = StepFlops(model, self.device, numbers.dtype, logs=self._cluster.is_main)
            self._timer = StepTimer(self.device, flops=flops)
        self._epoch_schedules = EpochSchedules(schedulers) if schedule_each == "epoch" else None
        self._why_not_kept = why_not_kept(checkpoints, on_nonfinite, measures=timing or profile is not None)
        step = OptimizerStep(
            optimizers,
            schedulers=schedulers if self._epoch_schedules is None else [self._epoch_schedules],
            scaler=scaler,
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            guard=None if on_nonfinite is None else self._guard(on_nonfinite, has_scaler=scaler is not None),
            tells_applied=ema is not None,
            timer=self._timer,
        )
        check_options_agree(
            self._membership,
            optimizer=optimizer_options(optimizers),
            scheduler=[type(each).__name__ for each in schedulers],
            state=sorted(map(str, state or {})),
            precision=numbers.name,
            schedule_each=schedule_each,
            accumulate=accumulate,
            log_every=log_every,
            clip_norm=clip_norm,
            clip_value=clip_value,
            ema=ema,
            on_nonfinite=on_nonfinite,
            seed=seed,
            name=name,
            ddp=ddp,
            checkpoints=checkpoints,
            **{MAX_STEPS_VARIABLE: job.max_steps},
        )
        self._model_step = ModelStep(
            self.module, wrapped, step, self._membership, device=self.device, ema=ema, options=ddp
        )
        self.model, average = self._model_step.model, self._model_step.average
        self.ema: nn.Module | None = None if average is None else numbers.wrap(average.module).eval()
        own: dict[str, Stateful | None] = {"ema": average, "epoch_schedules": self._epoch_schedules}
        self._kept = {name: part for name, part in (state or {}).items() if isinstance(part, Trainer)}
        extra, self._per_rank = with_parts_of_kept(state or {}, Trainer, Trainer._leave_to_another)
        self._state = state_parts(
            self.module,
            optimizers,
            schedulers,
            scaler,
            extra,
            own={name: part for name, part in own.items() if part is not None},
            on_change=checkpoints.on_change,
            logs=self._cluster.is_main,
        )
        self._named_optimizers = [part for part in self._state.values() if isinstance(part, NamedOptimizer)]
        self._running_means = [part for part in (state or {}).values() if isinstance(part, RunningMean)]
        if ddp.comm_hook == "powersgd":  # on one rank too, so that several can resume from its checkpoint
            self._per_rank["powersgd"] = self._model_step.powersgd or PowerSGD(ddp, self._membership)
        stall = nullcontext if self._timer is None else partial(self._timer.phase, "checkpoint")
        self._save_schedule = SaveSchedule(
            self._job,
            self._membership,
            checkpoints,
            before_save=self._before_save,
            has_other_weights=self._has_other_weights,
            stall=stall,
        )
        self._progress = self._save_schedule.progress
        self._view = RunView(
            self._job,
            self._progress,
            trackers,
            device=self.device,
            name=name,
            live=progress,
            policy=checkpoints,
        )
        self._save_schedule.on_begin = self._begin_views if self.is_main else self._view.begin_beside_main
        self._is_kept = False
        self._counts_steps = False

        self._accumulate = accumulate
        self._seed = seed
        self._loaders = Loaders(self._membership, seed=seed, pin_memory=self.device.type == "cuda")
        self._streams = BatchStreams(
            self._loaders,
            Loop(
                begin=self._begin,
                micro_batches=lambda: step.micro_batch,
                finish_window=self._finish_window,
                look=self._save_or_stop_if_due,
                next_epoch=self._next_epoch,
                begin_evaluation=self._begin_evaluation,
                leave=self._note_weights,
                timed=iter if self._timer is None else self._timer.batches,
            ),
            device=self.device,
            accumulate=accumulate,
            world_size=self._cluster.world_size,
        )

        self._report = StepReport(
            self._view,
            self._model_step,
            self._loaders,
            progress=self._progress,
            device=self.device,
            timer=self._timer,
        )
        self._profiler: StepProfiler | None = None
        if profile is not None and (self.is_main or profile.every_rank):
            directory = self._job.output_data_dir / (name or "") / "profile"
            self._profiler = StepProfiler(profile, directory, rank=self._cluster.rank)
        self._log_every = log_every
        if job.max_steps is not None:
            self._log_every = min(log_every, -(-job.max_steps // 2))  # so that there is something to see
        self._next_look: float = 1
        self._last_step = math.inf

    @property
    def steps(self) -> int:
        """Optimizer steps taken, including those before a resume."""
        return self._progress.steps

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._cluster.is_main

    def loader(
        self,
        dataset: AnyDataset | DataLoader[Any],
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        tail: Tail = "drop",
        fingerprint: str | None = None,
        sharded_by_host: bool = False,
        on_host_change: OnChange = "refuse",
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a loader of this rank's share of the training data; its position is part of every checkpoint.

        A worker's random numbers for a sample depend on seed, epoch and sample alone.

        ``dataset`` may be a DataLoader. From a plain one (shuffled, in order, or with a DistributedSampler) the trainer
        takes the dataset and the options, and gives each rank its share; its ``batch_size`` is the size of one
        micro-batch on one rank. One with ``state_dict``, such as torchdata's StatefulDataLoader, is used as it is, and
        resumes on the same number of ranks.

        Args:
            dataset: All of the data, the same on all ranks: a dataset with a length, a `ShardedDataset`, or a
                `PipeDataset`; or a DataLoader, which brings its own batch size, order and tail.
            batch_size: Samples per optimizer step, over all ranks and micro-batches; divisible by both.
            shuffle: False keeps the dataset's order.
            tail: What to do with the samples beyond the last whole batch of an epoch: ``"drop"`` leaves them out,
                ``"short"`` makes a smaller batch of them, whose losses ``step`` weighs, ``"wrap"`` fills that batch
                with the first samples of the epoch.
            fingerprint: The fingerprint of the data, by `smddp.fingerprint`; a resume with other data then fails.
            sharded_by_host: Whether each host has only its own part of the data (a ``ShardedByS3Key`` channel). An
                epoch takes as many samples from each host as the smallest part has, and resumes only on the same hosts.
            on_host_change: What a resume on other hosts does: ``"refuse"``, or ``"restart"`` the epoch.
            **options: Further arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``.

        Raises:
            ValueError: The batch size does not divide, the ranks have different data, the trainer has a loader already,
                or training has begun; or a DataLoader comes with a second batch size, order or tail, or draws an order
                that its state does not contain.
            PeerFailedError: Another rank's dataset has no length.
        """
        self._check_not_kept()
        if self._loaders.loader is not None or self._save_schedule.has_started:
            raise ValueError("a trainer has one training loader, made before its first epoch; make a second trainer")
        if isinstance(dataset, StatefulLoader) and batch_size is None:
            check_shares(dataset, self._cluster.world_size)
            self._loaders.loader = dataset
            outlive_stop(dataset)  # a resume may start its workers
            self._streams.place = LoaderState(dataset, self._cluster.world_size)
            self._per_rank["loader"] = self._streams.place
            return dataset
        if isinstance(dataset, DataLoader):
            if batch_size is not None or not shuffle or tail != "drop":
                raise ValueError(
                    "a DataLoader has a batch size, an order and drop_last of its own: leave out batch_size, shuffle "
                    "and tail, or give trainer.loader() the dataset instead"
                )
            own = DataLoaderOptions.of(dataset)
            dataset, shuffle, tail = own.dataset, own.shuffle, "drop" if own.drop_last else "short"
            batch_size = own.micro_batch_size * self._accumulate * self._cluster.world_size
            options = {**own.options, **options}
        if batch_size is None:
            raise ValueError("give batch_size: samples an optimizer step, over all ranks and micro-batches")
        order = OrderOptions(
            global_batch=batch_size,
            accumulate=self._accumulate,
            seed=self._seed,
            shuffle=shuffle,
            tail=tail,
            fingerprint=fingerprint,
            sharded_by_host=sharded_by_host,
            on_host_change=on_host_change,
        )
        return self._loaders.training(dataset, order, options=options)

    def evaluation_loader(
        self, dataset: AnyDataset, batch_size: int, *, sharded_by_host: bool = False, **options: Any
    ) -> DataLoader[Any]:
        """Return a loader of this rank's share of the dataset: every sample once over all ranks, in order, no padding.

        Args:
            dataset: All of the data, the same on all ranks: a dataset with a length, or a `ShardedDataset`.
            batch_size: Samples per batch on each rank.
            sharded_by_host: Whether each host has only its own part of the data.
            **options: Further arguments of ``torch.utils.data.DataLoader``.

        Raises:
            ValueError: The ranks have different data, or it comes through pipes.
            PeerFailedError: Another rank could not read its data.
        """
        return self._loaders.evaluation(
            dataset, batch_size=batch_size, sharded_by_host=sharded_by_host, options=options
        )

    def resume(self) -> bool:
        """Load the newest valid checkpoint; ``epochs`` calls it unless the script has.

        Returns:
            Whether a checkpoint was loaded.

        Raises:
            CheckpointError: On every rank: the location can't be written, it has checkpoints and none is valid, or the
                newest valid one does not fit the model.
        """
        self._check_not_kept()
        is_resumed = self._save_schedule.resume(self._state, self._per_rank, self._loaders.order)
        self._restart()
        self._limit(None)
        if self._profiler is not None:
            self._profiler.after_step(self.steps)
        if self._progress.finished and self.is_main:
            logger.info(
                "finished at step %d by trainer.finish_if(): nothing is left to train; take another run directory or "
                "checkpoint_s3_uri to begin anew",
                self.steps,
            )
        return is_resumed

    def epochs(self, count: int, *, max_steps: int | None = None) -> Iterator[int]:
        """Yield the epochs up to ``count``, counted from 0, starting at the newest checkpoint.

        An interrupted epoch is yielded again, and ``batches`` yields its remaining batches. Each epoch ends with a
        checkpoint, and the last one is durable when the loop ends.

        Args:
            count: Epochs from the very first start, including those before a resume.
            max_steps: Optimizer steps after which training ends, in mid-epoch too. A rerun with a larger number
                continues in that epoch.

        Raises:
            ValueError: ``max_steps`` is not positive.
            Stopped: The job was told to stop, and a checkpoint is durable.
            CheckpointError: More saves in a row failed than the policy tolerates, or the one before a stop failed.
        """
        self._begin()
        progress = self._progress
        self._counts_steps = False
        self._start_epoch()
        self._between_steps()
        if max_steps is not None:
            check_counts(max_steps=max_steps)
        most = self._at_most(max_steps)
        self._limit(most)
        if not progress.finished and self.is_main:
            if progress.epoch >= count:
                logger.warning(
                    "all %d epochs are in the checkpoint: %s ask for more epochs to go on", count, _NOTHING_LEFT
                )
            elif self._streams.is_over:
                self._say_nothing_is_left(most, max_steps)
        self._report.aim(epochs=count, most=self._last_step)
        try:
            while progress.epoch < count and not self._streams.is_over:
                self._report.restart()
                yield progress.epoch
                if not self._streams.is_cut:
                    self._end_epoch()
                self._save_schedule.save(again=progress.finished)
                self._between_steps()
        finally:  # after a `break`, too
            self._limit(None)
            self._pause_views()
        self._save_schedule.finish()

    def steps_to(self, count: int) -> Iterator[int]:
        """Yield the optimizer steps taken, up to ``count``, starting at the newest checkpoint.

        For loops that count steps, not epochs: ``batches`` continues with the next epoch of the data, without end::

            batches = trainer.batches(loader)
            for _ in trainer.steps_to(10_000):
                images, labels = next(batches)
                trainer.step(cross_entropy(trainer.model(images), labels))

        With ``accumulate``, each number is yielded once per micro-batch. A checkpoint is durable when the loop ends.

        Raises:
            ValueError: ``count`` is no whole number of 1 or more.
            Stopped, CheckpointError: As in ``epochs``.
        """
        check_counts(count=count)
        most = self._at_most(count)
        self._begin()
        self._counts_steps = True
        self._start_epoch()
        self._between_steps()
        if self.steps >= most and not self._progress.finished and self.is_main:
            self._say_nothing_is_left(most, count)
        self._report.restart()
        was_finished = self._progress.finished
        self._report.aim(steps=most)
        try:
            while self.steps < most and not (self._streams.is_over and self._model_step.step.micro_batch == 0):
                yield self.steps
                self._streams.settle()
                self._save_or_stop_if_due()
            self._save_schedule.save(again=self._progress.finished and not was_finished)
            self._between_steps()
        finally:  # after a `break`, too
            self._pause_views()
        self._save_schedule.finish()

    def finish_if(self, condition: bool) -> bool:
        """End the training on all ranks if the condition holds on any of them; all must call it.

        ``batches`` ends with the optimizer step under way, ``epochs`` with the epoch, ``steps_to`` with the step. The
        next checkpoint records that the training is finished, so a rerun trains no further; a loop of your own must
        call ``save``::

            stopping = smddp.EarlyStopping(patience=3)
            trainer = smddp.Trainer(job, model, optimizer, state={"early_stopping": stopping})
            for epoch in trainer.epochs(100):
                ...
                trainer.finish_if(stopping.update(validation_loss))

        Returns:
            Whether the training is finished; it stays True from then on.
        """
        self._begin()
        anywhere = sum_over_ranks(torch.tensor(int(condition)), self._membership).item() > 0
        self._progress.finished = self._progress.finished or anywhere
        self._streams.is_over = self._streams.is_over or self._progress.finished
        return self._progress.finished

    def save(self, *, wait: bool = False) -> None:
        """Save a checkpoint between two steps, replacing one of the same step; all ranks call it.

        Args:
            wait: Return only once the checkpoint is durable. Otherwise it becomes durable later; ``smddp.run`` waits
                for it at the end.

        Raises:
            CheckpointError: More saves in a row failed than the policy tolerates.
            TrainingDivergedError: The weights are not finite.
        """
        self._begin()
        self._streams.settle()
        self._save_schedule.save(again=True)
        if wait:
            self._save_schedule.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, on the device; call ``step`` for each batch to train on.

        The first training batch calls ``resume`` unless the script has. A loader that ``loader`` did not make causes a
        warning, because its position is in no checkpoint. If its batches end within an optimizer step, the step is
        taken with those micro-batches. Under ``torch.no_grad``, and from an ``evaluation_loader``, batches are only
        moved.

        Raises:
            ValueError: A DataLoader would give all of the data to every rank.
        """
        return self._streams.of(loader)

    def step(self, loss: Tensor, *, weight: Tensor | float | None = None) -> bool:
        """Run the backward pass of one micro-batch; after the last one of an optimizer step, take that step.

        A step unscales and clips the gradients, steps optimizer and schedule, and then logs, saves or stops if due.

        Args:
            loss: A scalar, the mean over this rank's micro-batch.
            weight: The number of items in that mean, if micro-batches have unequal numbers of items, such as tokens.
                The gradient is then that of the mean over all items of the step, on all ranks. Pass it with each
                micro-batch of a step; it costs a sum over the ranks each step. The loss must be finite even if the
                weight is 0: PyTorch's mean over no target is NaN, ``outputs.sum() * 0`` is not.

        Returns:
            Whether this was the last micro-batch of an optimizer step, so that ``steps`` has increased; a step that
            fp16's loss scaler skipped counts too.

        Raises:
            ValueError: The loss does not come from ``trainer.model`` (with several ranks), batches and steps do not
                pair up (with ``accumulate``), or a weight is out of range.
            TrainingDivergedError: The weights are not finite, at a save or at a metric line whose loss is not finite;
                or the gradients of any step are not finite, and ``on_nonfinite`` is ``"stop"`` or ``"raise"``.
            Stopped, CheckpointError: As in ``epochs``.
        """
        if self._timer is not None:
            self._timer.mark("forward")
        order, model_step = self._loaders.order, self._model_step
        self._streams.check_step()
        for optimizer in self._named_optimizers:
            optimizer.note_added_groups()
        share = 1.0 if order is None else order.loss_weight(model_step.step.micro_batch)
        collect = (self._progress.steps + 1) % self._log_every == 0
        is_done = model_step.backward_and_step(loss, share, items=weight, collect=collect)
        if is_done:
            self._after_step()
        return is_done

    def _finish_window(self) -> None:
        self._model_step.finish_window()
        self._after_step()

    def _after_step(self) -> None:
        self._streams.count_step()
        progress = self._progress
        progress.steps += 1
        if self._profiler is not None:
            self._profiler.after_step(progress.steps)
        if progress.steps % self._log_every == 0:
            self._report.show()
        if not self._streams.in_step:  # else `BatchStreams` calls it when the loop is done with the batch
            self._save_or_stop_if_due()
            if not self._is_kept:
                self._note_weights()

    def sum(self, value: Tensor | float | list[float]) -> Tensor:
        """Return the sum over all ranks of a number, a list of numbers or a tensor, as a tensor on the device.

        The sum of whole numbers is whole, if all ranks pass whole numbers.

        Raises:
            Stopped, CheckpointError: As in ``epochs``, if no batch is under way.
        """
        if isinstance(value, Tensor):
            total = sum_over_ranks(value.detach().to(self.device), self._membership)
        else:
            total = sum_numbers_over_ranks(value, self._membership).to(self.device)
        if not self._streams.in_step:
            self._between_steps(evaluates=True)
        return total

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, joined along the first dimension, such as the scores of a test set.

        Args:
            tensor: Of any length along its first dimension; a scalar counts as one element.

        Returns:
            A new tensor on the tensor's device, in the order of the ranks, without gradients.

        Raises:
            ValueError: On every rank, if other dimensions or the types differ.
            Stopped, CheckpointError: As in ``epochs``, if no batch is under way.
        """
        gathered = gather_over_ranks(tensor, self._membership)
        if not self._streams.in_step:
            self._between_steps(evaluates=True)
        return gathered

    def log(self, *, reduce: Reduce | None = None, **metrics: float | Tensor) -> dict[str, float]:
        """Log metrics in one line, on rank 0, and record them in the manifest of this step's checkpoint.

        Args:
            reduce: None shows rank 0's metrics, and any rank may call it alone. ``"mean"``, ``"sum"`` and ``"max"``
                reduce each metric over all ranks, and all must call it.
            **metrics: Numbers, or tensors of one element.

        Returns:
            The numbers; with ``reduce`` the same on all ranks.

        Raises:
            ValueError: A metric is no number or has a reserved name, the ranks log different metrics, or ``reduce`` is
                unknown.
        """
        check_reduce(reduce)
        check_names(metrics)
        numbers = (
            as_numbers(metrics) if reduce is None else over_ranks(lambda: as_numbers(metrics), reduce, self._membership)
        )
        self._save_schedule.note(numbers)
        if self.is_main:
            self._view.show(numbers)
        return numbers

    def save_model(self, model: nn.Module | None = None) -> None:
        """Write ``model.safetensors`` and ``model.pt`` to the job's model directory, by rank 0; the others wait.

        Args:
            model: The model to write instead of the trained one, such as ``trainer.ema``.

        Raises:
            TrainingDivergedError: The weights are not finite.
        """
        self._check_finite()
        module = self.module if model is None else without_precision(model)
        self._membership.ranks.on_main(lambda: write_model(module, self._job.model_dir))
        self._view.saved_model()

    def _guard(self, action: OnNonfinite, *, has_scaler: bool) -> NonfiniteGuard:
        def save() -> None:
            self._save_schedule.save()
            self._save_schedule.finish()
            self._save_schedule.leave()

        return NonfiniteGuard(
            self.module, self._membership, action, steps=lambda: self.steps, save=save, has_scaler=has_scaler
        )

    def _begin(self) -> None:
        if not self._save_schedule.has_started:
            self.resume()

    def _leave_to_another(self) -> tuple[Mapping[str, Stateful], Mapping[str, Stateful]]:
        """Hand checkpoints and stops over to another trainer, which saves the returned state and per-rank state."""
        if self._is_kept or self._save_schedule.has_started:
            raise ValueError("a Trainer in state= must be new: give it to one other, before it resumes or trains")
        if self._why_not_kept is not None:
            raise ValueError(self._why_not_kept)
        self._is_kept = True
        self._save_schedule.leave_to_another()
        return {**self._state, "progress": self._progress}, self._per_rank

    def _begin_views(self, run: OpenRun, whole: RunView | None = None, name: str = "") -> None:
        if whole is not None:
            self._view.belong_to(whole, name)
        self._view.begin(run)
        for part, each in self._kept.items():
            Trainer._begin_views(each, run, self._view, part)

    def _check_not_kept(self) -> None:
        if self._is_kept:
            raise ValueError(
                "this Trainer is kept in state= of another one, whose loop it steps in: call the loader, resume, save, "
                "epochs, steps_to, batches and finish_if of that one"
            )

    def _begin_evaluation(self) -> Callable[[], None]:
        """Return a function that restores the random state at the evaluation's end.

        So the evaluation's random numbers change nothing after it, and a resume may repeat it.
        """
        before, steps, taken = capture_random_state(), self.steps, self._model_step.step.micro_batch
        if not self._streams.in_step:
            self._save_schedule.begin_evaluation()
            self._next_look = self.steps + 1

        def end() -> None:
            self._save_schedule.end_evaluation()
            if (self.steps, self._model_step.step.micro_batch) == (steps, taken):  # else training drew, too
                restore_random_state([before], rank=0)

        return end

    def _pause_views(self) -> None:
        self._view.rest()
        if self._profiler is not None:
            self._profiler.stop()

    def _next_epoch(self) -> bool:
        if self._counts_steps:
            self._end_epoch()
        return self._counts_steps

    def _end_epoch(self) -> None:
        self._count_epoch()
        self._start_epoch()

    def _count_epoch(self) -> None:
        if self._epoch_schedules is not None:
            self._epoch_schedules.end_epoch()
        self._progress.epoch += 1
        if self._streams.place is not None:
            self._streams.place.start_epoch()
        for each in self._kept.values():
            Trainer._count_epoch(each)

    def _restart(self) -> None:
        self._model_step.restart()
        for each in self._kept.values():
            Trainer._restart(each)

    def _start_epoch(self) -> None:
        self._streams.start_epoch()
        self._model_step.restart()
        self._loaders.start_epoch(self._progress.epoch)

    def _between_steps(self, *, evaluates: bool = False) -> None:
        if self._is_kept:
            return
        self._save_schedule.between_steps(evaluates=evaluates)
        self._next_look = self._progress.steps + 1  # the agreement may have set another step

    @overload
    def _at_most(self, steps: int) -> int: ...

    @overload
    def _at_most(self, steps: int | None) -> int | None: ...

    def _at_most(self, steps: int | None) -> int | None:
        """Return the step at which a loop ends: ``steps``, or SMDDP_MAX_STEPS if that is less; None for no limit."""
        most = self._job.max_steps
        if most is None or (steps is not None and steps <= most):
            return steps
        if self.is_main:
            logger.warning("SMDDP_MAX_STEPS=%d: training ends after at most %d optimizer steps", most, most)
        return most

    def _say_nothing_is_left(self, most: int | None, asked: int | None) -> None:
        more = "ask for more steps" if most == asked else f"raise {MAX_STEPS_VARIABLE}"
        logger.warning("all %s steps are in the checkpoint: %s %s to go on", most, _NOTHING_LEFT, more)

    def _limit(self, max_steps: int | None) -> None:
        self._last_step = math.inf if max_steps is None else max_steps
        self._streams.is_over = self._progress.finished or self.steps >= self._last_step

    def _note_weights(self) -> None:
        self._model_step.note_weights()
        for each in self._kept.values():
            Trainer._note_weights(each)

    def _has_other_weights(self) -> bool:
        return self._model_step.has_other_weights or any(map(Trainer._has_other_weights, self._kept.values()))

    def _before_save(self, kept_as: str = "") -> None:
        self._model_step.share_new_layers()
        self._check_finite()
        self._model_step.tell_of_other_shapes()
        for mean in self._running_means:
            mean.share()
        for name, each in self._kept.items():
            Trainer._before_save(each, name)
        if kept_as and self._model_step.step.micro_batch and self.is_main:
            logger.warning(
                "a checkpoint leaves out %d micro-batches of the step that the Trainer %r in state= has under way. A "
                "resume takes that step without them: let it take whole steps in each step of the other trainer",
                self._model_step.step.micro_batch,
                kept_as,
            )

    def _check_finite(self) -> None:
        self._model_step.loss.check_weights(self._progress.steps)

    def _save_or_stop_if_due(self) -> None:
        """Save or stop if due, between two steps; set the step at which to look next."""
        if self._progress.steps < self._next_look or self._is_kept:
            return
        checkpoints = self._save_schedule
        if not checkpoints.has_started:
            checkpoints.begin_anew(self._state, self._per_rank, self._loaders.order)
        checkpoints.after_step()
        self._streams.is_over = self._streams.is_over or self._progress.steps >= self._last_step
        self._next_look = min(checkpoints.next_step, self._last_step)


def _listed(parts: Any) -> list[Any]:
    if parts is None:
        return []
    return list(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else [parts]
