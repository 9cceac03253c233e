"""The thin loop: the parts of a training loop around model and data that every script repeats.

The loop stays the script's. All ranks run the same loop: every rank makes the loaders and calls every method. Only
``log`` may be called by one rank alone.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from smddp.checkpoint.convert.saved_model import write_weights
from smddp.checkpoint.run_state import Stateful, is_in_pieces
from smddp.checkpoint.save.attempt import as_numbers
from smddp.data.build_order import AnyDataset
from smddp.data.order.data_order import Tail
from smddp.data.order.host_sharding import OnChange
from smddp.distributed import (
    DDPOptions,
    Sharded,
    ShardedModel,
    current_membership,
    gather_results,
    join,
    sum_results,
)
from smddp.dtensor import whole_values
from smddp.goodput import PartClock
from smddp.job import MAX_STEPS_VARIABLE, Job
from smddp.metrics import Profile
from smddp.metrics.metric_lines import check_names
from smddp.metrics.running_mean import Reduce, check_reduce, over_ranks
from smddp.metrics.tracking import Tracker
from smddp.training.argument_checks import as_counts, check_bounds, check_kinds, check_options_agree
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.model_checks import check_clipping, check_model_parallel, why_not_inner
from smddp.training.nonfinite import OnNonfinite
from smddp.training.optimizer_step import ScheduleEach
from smddp.training.precision import PrecisionName, unwrapped
from smddp.training.run_report import RunReport
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData
from smddp.training.training_loop import TrainingLoop
from smddp.training.training_parts import TrainingParts
from smddp.training.training_run import TrainingRun

_DEFAULT_POLICY = CheckpointPolicy()
_DEFAULT_PARALLEL = DDPOptions()


class Trainer(TrainingLoop):
    """Trains one model with one optimizer on all ranks of a job.

    The trainer seeds only the order of the data: `smddp.seed_everything` seeds the rest. With several ranks, all start
    from the weights of rank 0.

    Attributes:
        model: The model to call in the loop, in its precision, replicated over the ranks. Under ``torch.no_grad`` it is
            the rank's own copy, and waits for no other rank. A sharded model waits for the others in each call.
        module: The original model, on its device.
        device: The device of the model, to which ``batches`` moves the data.
        ema: The moving average of the model, in its precision and in evaluation mode, or None. It is updated after each
            optimizer step that was applied, BatchNorm's statistics included, and is part of each checkpoint.

    Examples:
        A whole training:

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
        rewinds: int = 3,
        check_replicas: int | None = 100,
        checkpoints: CheckpointPolicy = _DEFAULT_POLICY,
        seed: int = 0,
        log_every: int | None = None,
        state: Mapping[str, Stateful | dict[str, Any] | Trainer] | None = None,
        name: str | None = None,
        move_model: bool = True,
        parallel: DDPOptions | Sharded = _DEFAULT_PARALLEL,
        trackers: Sequence[Tracker] = (),
        progress: bool = True,
        timing: bool = False,
        profile: Profile | None = None,
        place: bool | None = None,
        ddp: DDPOptions | None = None,
    ) -> None:
        """Prepare the model; join the process group unless the process has joined already.

        Args:
            job: The job, with its directories and ranks.
            model: The model itself, or ``torch.compile`` of it; it is moved to the rank's device. On the meta device it
                gets values there: each layer's ``reset_parameters`` and the model's ``_init_weights`` draw them.
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
                error, or ``"stop"``: raise it after a checkpoint of the state before the step. ``"rewind"`` loads the
                newest checkpoint and continues with the next batch: weights and steps go back, the data do not, so the
                samples since the checkpoint are not repeated. This check waits for the GPU once a step. None checks
                only at metric lines and saves whether the weights are finite.
            rewinds: How often an attempt may go back by ``on_nonfinite="rewind"``; the next time is an error.
            check_replicas: Optimizer steps from one comparison of the ranks' weights to the next, bit by bit; each save
                compares them, too. A difference is an error on all ranks that names the weight and the rank. None
                compares nothing. The ranks of a sharded model have different weights, and are not compared.
            checkpoints: When to save, and which checkpoints to keep; see `smddp.CheckpointPolicy`.
            seed: The seed of the order of the data.
            log_every: Optimizer steps from one metric line to the next. None takes metrics every 50 steps, and logs at
                most one line of them a second; trackers get all.
            state: Further parts of each checkpoint, by name, the same on all ranks: an average of the weights, another
                model or optimizer, a schedule by a metric. Each part has ``state_dict`` and ``load_state_dict``, or is
                a dict of numbers and tensors. The trainer neither moves nor steps it. A part may be another Trainer
                that steps in this one's loop, such as a GAN's generator: it then has no checkpoints of its own, and
                ``timing`` and ``profile`` belong to this one.
            name: The name of this trainer in a job with several; its checkpoints and model get a directory of it.
            move_model: False leaves the model where it is, on one device or on several.
            parallel: How the ranks work together: each with the whole model, by `smddp.DDPOptions`, or each with a
                piece of its weights, by `smddp.Sharded`. A model under torch's ``fully_shard`` is used as it is.
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
            ddp: Deprecated name of ``parallel``.

        Raises:
            ValueError: A number is out of range, the device can't compute in the precision, model and optimizer do not
                fit each other, a name is not allowed, or the job asks for ``smdistributed.modelparallel`` and
                ``parallel`` does not divide the weights.
            TypeError: An argument has the wrong type.
        """
        if place is not None:
            warnings.warn("Trainer(place=…) is named move_model= now", DeprecationWarning, stacklevel=2)
            move_model = place
        if ddp is not None:
            warnings.warn("Trainer(ddp=…) is named parallel= now", DeprecationWarning, stacklevel=2)
            if parallel is not _DEFAULT_PARALLEL:
                raise ValueError("ddp= and parallel= are two names of one argument: leave ddp= out")
            parallel = ddp
        check_kinds(job=job, model=model, checkpoints=checkpoints, seed=seed, state=state, name=name)
        check_kinds(
            parallel=parallel,
            trackers=trackers,
            move_model=move_model,
            progress=progress,
            timing=timing,
            profile=profile,
        )
        seed = int(seed)
        accumulate, rewinds = as_counts(accumulate=accumulate, rewinds=rewinds)
        if log_every is not None:
            [log_every] = as_counts(log_every=log_every)
        if check_replicas is not None:
            [check_replicas] = as_counts(check_replicas=check_replicas)
        check_bounds(clip_norm=clip_norm, clip_value=clip_value)
        check_clipping(clip_norm, clip_value)
        check_model_parallel(job, model, parallel)
        membership = current_membership() or join(job.cluster)
        job = dataclasses.replace(job, cluster=membership.cluster)  # an adopted group may know more
        job = job if name is None else job.part(name)
        state = state or {}
        check_options_agree(
            membership,
            state=sorted(map(str, state)),
            log_every=log_every,
            seed=seed,
            name=name,
            checkpoints=checkpoints,
            **{MAX_STEPS_VARIABLE: job.max_steps},
        )
        trained = TrainedModel(
            model,
            _listed(optimizer),
            _listed(scheduler),
            membership,
            schedule_each=schedule_each,
            precision=precision,
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            ema=ema,
            on_nonfinite=on_nonfinite,
            rewinds=rewinds,
            check_replicas=check_replicas,
            beside=lambda: _parameters_of(state),
            save=lambda: self._run.save_and_leave(),
            samples=lambda micro_batch: self._data.samples(micro_batch),
            move_model=move_model,
            parallel=parallel,
            timing=timing,
        )
        membership = trained.membership
        self.model, self.module, self.ema, self.device = trained.model, trained.module, trained.ema, trained.device
        inner = {key: part for key, part in state.items() if isinstance(part, Trainer)}
        is_sharded = any(
            isinstance(each, ShardedModel) for each in (trained.model, *(part.model for part in inner.values()))
        )
        if is_sharded:
            job = checkpoints.reached_by_all(job)
        clock = PartClock()
        data = TrainingData(
            membership,
            trained.optimizer_step,
            device=trained.device,
            seed=seed,
            timer=trained.timer,
            even=is_sharded,
        )
        for part in inner.values():
            part._run.leave_to_another(membership)  # noqa: SLF001
        parts = TrainingParts(
            trained,
            data,
            {key: part._parts if isinstance(part, Trainer) else part for key, part in state.items()},  # noqa: SLF001
            on_change=checkpoints.on_change,
            logs=membership.cluster.is_main,
        )
        run = TrainingRun(
            job,
            membership,
            checkpoints,
            parts,
            clock=clock,
            stall=nullcontext if trained.timer is None else partial(trained.timer.phase, "checkpoint"),
            why_not_inner=why_not_inner(checkpoints, on_nonfinite, measures=timing or profile is not None),
        )
        report = RunReport(
            job,
            trained,
            data,
            name=name,
            log_every=log_every,
            trackers=trackers,
            progress=progress,
            profile=profile,
            policy=checkpoints,
            inner={key: part._report for key, part in inner.items()},  # noqa: SLF001
        )
        super().__init__(job, membership, trained, data, parts, run, report, clock)

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

        A worker's random numbers for a sample depend on seed, epoch and sample alone. Its ``len`` is the number of
        batches of a whole epoch. Under ``torch.no_grad`` an iteration over it yields the whole epoch, too; else it
        yields the batches that are left of the epoch.

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
                or training has begun; or a DataLoader comes with a second batch size, order or tail, overrides a method
                such as ``__iter__``, or draws an order that its state does not contain.
            PeerFailedError: Another rank's dataset has no length.
        """
        self._check_new()
        return self._data.training_loader(
            dataset,
            batch_size,
            shuffle=shuffle,
            tail=tail,
            fingerprint=fingerprint,
            sharded_by_host=sharded_by_host,
            on_host_change=on_host_change,
            options=options,
        )

    def evaluation_loader(
        self, dataset: AnyDataset, batch_size: int, *, sharded_by_host: bool = False, **options: Any
    ) -> DataLoader[Any]:
        """Return a loader of this rank's share of the dataset: every sample once over all ranks, in order, no padding.

        For a sharded model all ranks have equally many batches. A worker's random numbers for a sample depend on seed
        and sample alone, and are the same in each evaluation.

        Args:
            dataset: All of the data, the same on all ranks: a dataset with a length, or a `ShardedDataset`.
            batch_size: Samples per batch on each rank.
            sharded_by_host: Whether each host has only its own part of the data.
            **options: Further arguments of ``torch.utils.data.DataLoader``.

        Raises:
            ValueError: The ranks have different data, or it comes through pipes; or a sharded model's ranks would have
                different numbers of batches.
            PeerFailedError: Another rank could not read its data.
        """
        return self._data.evaluation_loader(dataset, batch_size, sharded_by_host=sharded_by_host, options=options)

    def step(self, loss: Tensor, *, weight: Tensor | float | None = None) -> bool:
        """Run the backward pass of one micro-batch; after the last one of an optimizer step, take that step.

        A step unscales and clips the gradients, steps optimizer and schedule, and then logs if due. It saves or stops
        if due outside of ``batches``; inside, it does so when the loop asks for the next batch.

        Args:
            loss: A scalar, the mean over this rank's micro-batch.
            weight: The number of items in that mean, if micro-batches have unequal numbers of items, such as tokens.
                The step's gradient is then the gradient of the mean over all items on all ranks. Pass it with each
                micro-batch of a step; it costs a sum over the ranks each step. The loss must be finite even if the
                weight is 0: PyTorch's mean over no target is NaN, ``outputs.sum() * 0`` is not.

        Returns:
            Whether this was the last micro-batch of an optimizer step, so that ``steps`` has increased; a step that
            fp16's loss scaler skipped counts too.

        Raises:
            ValueError: The loss is no scalar, has no gradient, or does not come from ``trainer.model`` (with several
                ranks); batches and steps do not pair up (with ``accumulate``); or a weight is out of range.
            TypeError: The loss is not a tensor.
            TrainingDivergedError: The weights are not finite, at a save or at a metric line whose loss is not finite;
                or the gradients of any step are not finite, and ``on_nonfinite`` is ``"stop"`` or ``"raise"``.
            ReplicasDifferError: At a comparison, on every rank: the ranks have different weights.
            Stopped, CheckpointError: As in ``epochs``.
        """
        self._check_source()
        share = self._data.loss_weight()
        for each in self._parts.named_optimizers:
            each.note_added_groups()
        collect = (self._progress.steps + 1) % self._report.log_every == 0
        is_done = self._trained.step(loss, share, items=weight, collect=collect)
        if is_done:
            self._after_step()
        return is_done

    def sum(self, value: Tensor | float | list[float]) -> Tensor:
        """Return the sum over all ranks of a number, a list of numbers or a tensor, as a tensor on the device.

        The sum of whole numbers is whole, if all ranks pass whole numbers. Ranks that compute together under tensor
        parallelism count once.

        Raises:
            Stopped, CheckpointError: As in ``epochs``, if no batch is under way.
        """
        own = whole_values(value.detach()).to(self.device) if isinstance(value, Tensor) else value
        total = sum_results(own, self._membership).to(self.device)
        self._after_collective()
        return total

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, joined along the first dimension, such as the scores of a test set.

        Ranks that compute together under tensor parallelism count once.

        Args:
            tensor: Of any length along its first dimension; a scalar counts as one element.

        Returns:
            A new tensor on the tensor's device, in the order of the ranks, without gradients.

        Raises:
            ValueError: On every rank, if other dimensions or the types differ.
            Stopped, CheckpointError: As in ``epochs``, if no batch is under way.
        """
        gathered = gather_results(whole_values(tensor), self._membership)
        self._after_collective()
        return gathered

    def log(self, *, reduce: Reduce | None = None, **metrics: float | Tensor) -> dict[str, float]:
        """Log metrics in one line, on rank 0, and record them in the manifest of this step's checkpoint.

        Args:
            reduce: None shows rank 0's metrics, and any rank may call it alone. ``"mean"``, ``"sum"`` and ``"max"``
                reduce each metric over all ranks, and all must call it. Ranks that compute together under tensor
                parallelism count once.
            **metrics: Numbers, or tensors of one element.

        Returns:
            The numbers; with ``reduce`` the same on all ranks.

        Raises:
            ValueError: A metric is not a number or has a reserved name, the ranks log different metrics, or ``reduce``
                is unknown.
        """
        check_reduce(reduce)
        check_names(metrics)
        numbers = (
            as_numbers(metrics) if reduce is None else over_ranks(lambda: as_numbers(metrics), reduce, self._membership)
        )
        self._run.note(numbers)
        self._report.log(numbers)
        return numbers

    def save_model(self, model: nn.Module | None = None) -> None:
        """Write the weights to the job's model directory, by rank 0: ``model.safetensors`` and ``model.pt``.

        All ranks call it. Weights of more than 5 GB are written as ``model-00001-of-00002.safetensors`` and so on, with
        ``model.safetensors.index.json`` and without ``model.pt``. Of a sharded model, one tensor at a time is gathered.

        Args:
            model: The model to write instead of the trained one, such as ``trainer.ema``.

        Raises:
            TrainingDivergedError: The weights are not finite.
        """
        self._trained.check_weights()
        module, ranks = self.module if model is None else unwrapped(model), self._membership.ranks
        weights = ranks.agree(lambda: module.state_dict() if ranks.is_main or is_in_pieces(module) else {})
        write_weights(weights, self._job.model_dir, ranks)
        self._report.saved_model()


def _parameters_of(state: Mapping[str, Any]) -> list[Tensor]:
    """Return the parameters of the parts of ``state=``, but for dicts, whose values a resume replaces by others."""
    found: list[Tensor] = []
    for part in state.values():
        whole = part.module if isinstance(part, Trainer) else part
        if isinstance(whole, nn.Module):
            found += whole.parameters()
        elif hasattr(whole, "state_dict"):
            found += [value for value in whole.state_dict().values() if isinstance(value, Tensor)]
    return found


def _listed(parts: Any) -> list[Any]:
    if parts is None:
        return []
    return list(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else [parts]
