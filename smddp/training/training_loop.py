"""The loop: epochs, steps and batches, and what happens between two steps. Saves and stops happen only there."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.display_text import counted
from smddp.distributed import Membership, sum_over_ranks
from smddp.goodput import PartClock
from smddp.job import MAX_STEPS_VARIABLE, Job
from smddp.process.log_format import log_or_print
from smddp.training.argument_checks import as_count, as_counts
from smddp.training.run_report import RunReport
from smddp.training.save_schedule import Pause
from smddp.training.trained_model import TrainedModel
from smddp.training.training_data import TrainingData, is_evaluation, outlive_stop
from smddp.training.training_parts import TrainingParts
from smddp.training.training_run import TrainingRun

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")

_NOTHING_LEFT = "nothing is left to train; take another run directory or checkpoint_s3_uri to begin anew, or"


class TrainingLoop:
    """The loops of a `Trainer` over its model and its data; all ranks call each method at the same points."""

    def __init__(
        self,
        job: Job,
        membership: Membership,
        trained: TrainedModel,
        data: TrainingData,
        parts: TrainingParts,
        run: TrainingRun,
        report: RunReport,
        clock: PartClock,
    ) -> None:
        self._job = job
        self._membership = membership
        self._trained = trained
        self._progress = trained.progress
        self._data = data
        self._parts = parts
        self._run = run
        self._report = report
        self._clock = clock
        self._in_step = False  # whether the script works on a training batch; its work after `step` counts, too
        self._is_over = False  # whether to yield no further training batch after the optimizer step under way
        self._is_cut = False  # whether `_is_over` ended an epoch's batches early
        self._counts_steps = False  # whether the script loops over steps, not epochs
        self._last_step = math.inf
        self._has_batches = False  # whether the script has trained on what `batches` yields
        self._was_empty = False  # whether this epoch's batches ended without one
        self._is_told = set[str]()  # the warnings logged already

    @property
    def steps(self) -> int:
        """Optimizer steps taken, including those before a resume."""
        return self._progress.steps

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._membership.cluster.is_main

    def resume(self) -> bool:
        """Load the newest valid checkpoint, once, before the training.

        If the script has not called it, the first call of ``epochs``, ``steps_to``, ``batches``, ``finish_if`` or
        ``save`` does.

        Returns:
            Whether a checkpoint was loaded.

        Raises:
            CheckpointError: On every rank: the location can't be written, it has checkpoints and none is valid, or the
                newest valid one does not fit the model.
            ValueError: The training has begun already.
        """
        is_resumed = self._run.resume()
        self._report.begin(self._run.open_run)
        if is_resumed and self.is_main:
            log_or_print(logger, f"resumed at step {self._progress.steps}, in epoch {self._progress.epoch + 1}")
        self._limit(math.inf)
        self._report.before_first_step()
        if self._progress.finished and self.is_main:
            log_or_print(
                logger,
                f"finished at step {self._progress.steps} by trainer.finish_if(): nothing is left to train; take "
                "another run directory or checkpoint_s3_uri to begin anew",
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
            ValueError: ``count`` is negative or not a whole number, or ``max_steps`` is not positive.
            Stopped: The job was told to stop, and a checkpoint is durable.
            CheckpointError: More saves in a row failed than the policy tolerates, or the one before a stop failed.
        """
        progress = self._progress
        count = as_count(f"trainer.epochs({count!r})", count, least=0)
        if max_steps is not None:
            (max_steps,) = as_counts(max_steps=max_steps)
        self._begin()
        self._counts_steps = False
        self._start_epoch()
        self._save_or_stop_if_due(Pause.START)
        most = self._at_most(math.inf if max_steps is None else max_steps)
        self._limit(most)
        if not progress.finished and self.is_main:
            if count == 0:
                logger.warning("epochs=0: nothing is trained")
            elif progress.epoch >= count:
                logger.warning(
                    "%s in the checkpoint: %s ask for more epochs to continue",
                    counted(count, "epoch is", "epochs are"),
                    _NOTHING_LEFT,
                )
            elif self._is_over:
                _say_nothing_is_left(most, max_steps)
        self._report.aim(epochs=count, most=most)
        order = self._data.order
        self._trained.begin_epochs(count, None if order is None else order.steps_per_epoch)
        try:
            while progress.epoch < count and not self._is_over:
                self._report.restart()
                yield progress.epoch
                if not self._is_cut:
                    self._end_epoch()
                self._save_or_stop_if_due(Pause.END)
        finally:  # after a `break`, too
            self._limit(math.inf)
            self._report.hide_line()
        self._run.finish()

    def steps_to(self, count: int) -> Iterator[int]:
        """Yield the optimizer steps taken, up to ``count``, starting at the newest checkpoint.

        For loops that count steps, not epochs: ``batches`` continues with the next epoch of the data, without end:

            batches = trainer.batches(loader)
            for _ in trainer.steps_to(10_000):
                images, labels = next(batches)
                trainer.step(cross_entropy(trainer.model(images), labels))

        With ``accumulate``, each number is yielded once per micro-batch. A checkpoint is durable when the loop ends.

        Raises:
            ValueError: ``count`` is not a whole number of 1 or more.
            Stopped, CheckpointError: As in ``epochs``.
        """
        progress = self._progress
        count = as_count(f"trainer.steps_to({count!r})", count)
        most = int(self._at_most(count))
        self._begin()
        self._counts_steps = True
        self._start_epoch()
        self._save_or_stop_if_due(Pause.START)
        if progress.steps >= most and not progress.finished and self.is_main:
            _say_nothing_is_left(most, count)
        self._report.restart()
        self._report.aim(steps=most)
        try:
            while progress.steps < most and not (self._is_over and self._trained.optimizer_step.micro_batch == 0):
                yield progress.steps
                self._data.settle()
                self._save_or_stop_if_due(Pause.STEP)
            self._save_or_stop_if_due(Pause.END)
        finally:  # after a `break`, too
            self._clock.enter("other")
            self._report.hide_line()
        self._run.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, on the device; call ``step`` for each batch to train on.

        One call yields one epoch of the training loader, or what is left of it; ``epochs`` begins the next one. In a
        loop over ``steps_to``, one call yields epoch after epoch. The first training batch calls ``resume`` unless the
        script has.

        A loader that ``loader`` did not make causes a warning, because its position is in no checkpoint. If an epoch
        ends within an optimizer step, by a ``break`` too, the step is taken with the micro-batches so far. Under
        ``torch.no_grad``, batches are only moved. A long pass over an ``evaluation_loader`` begins with a
        checkpoint; after each pass the random state is restored.

        Raises:
            ValueError: A DataLoader would give all of the data to every rank; the epoch has ended; or the length of
                the dataset has changed.
        """
        outlive_stop(loader)
        return self._evaluation_batches(loader) if is_evaluation(loader) else self._training_batches(loader)

    def finish_if(self, condition: bool) -> bool:
        """End the training on all ranks if the condition holds on any of them; all must call it.

        ``batches`` ends with the optimizer step under way, ``epochs`` with the epoch, ``steps_to`` with the step. The
        next checkpoint records that the training is finished, so a rerun trains no further; a loop of your own must
        call ``save``:

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
        self._is_over = self._is_over or self._progress.finished
        return self._progress.finished

    def save(self, *, wait: bool = False) -> None:
        """Save a checkpoint between two steps, replacing one of the same step; all ranks call it.

        Before the training has begun, it resumes first.

        Args:
            wait: Return only once the checkpoint is durable. Otherwise it becomes durable later; ``smddp.run`` waits
                for it at the end.

        Raises:
            CheckpointError: More saves in a row failed than the policy tolerates; with ``wait``, this save failed.
            TrainingDivergedError: The weights are not finite.
            ReplicasDifferError: The ranks have different weights.
        """
        self._begin()
        self._data.settle()
        self._run.save(again=True)
        if wait:
            self._run.await_durable()

    def _check_new(self) -> None:
        """Raise ValueError if a training loader exists, the run has started, or another Trainer runs the loop."""
        self._run.check_outer()
        if self._data.has_loader:
            raise ValueError(
                "the trainer has a training loader already: make the loader of an evaluation by "
                "trainer.evaluation_loader(...), and a second Trainer for a second training"
            )
        if self._run.has_started:
            raise ValueError("the training has begun: call trainer.loader(...) before the first epoch, step and resume")

    def _after_step(self) -> None:
        """Report an optimizer step. Save or stop if due, unless a batch is under way."""
        self._data.count_step()
        self._report.after_step()
        guard = self._trained.guard
        if guard is not None and guard.event is not None:
            self._run.rewind(guard.event)
            guard.event = None
            self._report.restart()
        if not self._in_step:  # else `_training_batches` does it when the script is done with the batch
            if not (self._run.is_inner or self._run.has_started):
                self._run.begin_anew()
                self._report.begin(self._run.open_run)
                self._clock.mark_start(0)
            self._clock.enter("training")
            self._save_or_stop_if_due(Pause.STEP)
            self._parts.note_weights()

    def _after_collective(self) -> None:
        """Save or stop if due, unless a batch is under way: all ranks may be in an evaluation."""
        if not self._in_step:
            self._save_or_stop_if_due(Pause.COLLECTIVE)

    def _begin(self) -> None:
        if not self._run.has_started:
            self.resume()

    def _training_batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of one epoch, or without end if the script loops over steps."""
        data, clock = self._data, self._clock
        self._has_batches = self._has_batches or torch.is_grad_enabled()
        if not torch.is_grad_enabled():  # known only once the script iterates
            with clock.within("evaluation"):
                yield from data.moved(loader)
            return
        self._begin()
        keeps_position = data.is_training_loader(loader)
        was_empty = False  # a resume at an epoch's end yields one empty epoch
        outside = clock.part if clock.part in ("training", "evaluation") else "other"  # in another loader's batch
        clock.mark_start(self._progress.steps)
        while not self._cuts():
            is_empty = True
            batches = data.batches(loader)
            clock.enter("data")
            try:
                for batch in batches:
                    is_empty = False
                    self._in_step = True
                    clock.enter("training")
                    yield batch
                    if keeps_position:  # another loader may be within a training batch
                        data.settle()
                    self._save_or_stop_if_due(Pause.STEP)
                    if self._is_over and data.has_more(loader) and self._cuts():
                        break
                    clock.enter("data")
                clock.enter(outside)
                self._parts.note_weights()
            except GeneratorExit:  # a `break`, or the end of Python, which has taken the modules' functions away
                if not sys.is_finalizing():
                    clock.enter(outside)
                    self._parts.note_weights()
                raise
            finally:
                batches.close()
                self._in_step = False
            if data.may_end_in_window(loader) and self._trained.finish_window():
                self._after_step()
            self._was_empty = is_empty
            if self._is_cut or not self._counts_steps:
                break
            self._end_epoch()
            if is_empty and was_empty:
                raise ValueError("the loader gave no batch in a whole epoch: trainer.steps_to() would never end")
            was_empty = is_empty

    def _cuts(self) -> bool:
        """Return whether the batches end here, between two optimizer steps."""
        self._is_cut = self._is_over and self._trained.optimizer_step.micro_batch == 0
        return self._is_cut

    def _evaluation_batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield the batches of an evaluation. Save first if it may take long, and restore the random state afterwards.

        So the evaluation's random numbers change nothing after it, and a resume may repeat it.
        """
        before, taken = capture_random_state(), self._taken()
        if not self._in_step:
            self._run.begin_evaluation(before, len(loader))
        began = time.monotonic()
        try:
            with self._clock.within("evaluation"):
                yield from self._data.moved(loader)
        finally:
            self._run.end_evaluation(time.monotonic() - began)
            if self._taken() == taken:  # else training drew, too
                restore_random_state([before], rank=0)

    def _taken(self) -> tuple[int, int]:
        """Return the optimizer steps taken, and the micro-batches of the next one."""
        return self._progress.steps, self._trained.optimizer_step.micro_batch

    def _check_source(self) -> None:
        """Warn once if several ranks step on batches from another loader: a plain DataLoader gives each rank all."""
        if self._has_batches:
            return
        ranks = self._membership.data_rank.size
        if ranks > 1 and not (self._data.has_loader or self._run.is_inner):
            self._warn_once(
                f"trainer.step() trains on batches that come from neither trainer.loader() nor trainer.batches(). Each "
                f"of the {ranks} ranks must read its own share of the data, and a plain DataLoader gives each rank all "
                "of it: use trainer.batches(trainer.loader(dataset, batch_size=...)). If each rank reads its own "
                "share, use trainer.batches(loader)"
            )

    def _warn_once(self, message: str) -> None:
        if self.is_main and message not in self._is_told:
            self._is_told.add(message)
            logger.warning(message)

    def _start_epoch(self) -> None:
        self._in_step = self._is_cut = self._was_empty = False
        self._trained.restart()
        self._data.start_epoch(self._progress.epoch)

    def _end_epoch(self) -> None:
        """Take the step that a `break` has left under way, count the epoch for all models, and begin the next one."""
        if self._trained.finish_window():
            self._in_step = True  # the save or stop comes at the epoch's end
            self._after_step()
        models = self._parts.models.values()
        if not (self._was_empty or any(each.progress.steps or each.optimizer_step.micro_batch for each in models)):
            self._warn_once(
                "an epoch has ended, and trainer.step(loss) was never called: the Trainer has counted no step, and its "
                "checkpoints are those of step 0. Call trainer.step(loss) for each batch, in place of loss.backward() "
                "and optimizer.step()"
            )
        for model in self._parts.models.values():
            model.end_epoch()
        self._data.end_epoch()
        self._start_epoch()

    def _save_or_stop_if_due(self, pause: Pause) -> None:
        """Save, or save and stop, if due; end the loop at its last step."""
        self._run.save_or_stop_if_due(pause)
        self._is_over = self._is_over or self._progress.steps >= self._last_step

    def _at_most(self, steps: float) -> float:
        """Return the step at which a loop ends: ``steps``, or SMDDP_MAX_STEPS if that is less."""
        most = self._job.max_steps
        if most is None or steps <= most:
            return steps
        if self.is_main:
            logger.warning("SMDDP_MAX_STEPS=%d: training ends after at most %d optimizer steps", most, most)
        return most

    def _limit(self, last_step: float) -> None:
        self._last_step = last_step
        self._is_over = self._progress.finished or self._progress.steps >= last_step


def _say_nothing_is_left(most: float, asked: int | None) -> None:
    more = "ask for more steps" if most == asked else f"raise {MAX_STEPS_VARIABLE}"
    are = counted(int(most), "step is", "steps are")
    logger.warning("%s in the checkpoint: %s %s to continue", are, _NOTHING_LEFT, more)
