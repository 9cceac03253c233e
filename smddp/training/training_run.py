"""One training run: its progress, its checkpoints, and its stop.

A stop loses no step; a sudden loss costs at most the time between two checkpoints. `SaveSchedule` decides when to save
and stop; `TrainingRun` does both, while all ranks are between the same two steps. A moment is saved once the state is
copied, even if the write is under way; it is durable once the checkpoint is on disk or in S3.

How a stop becomes a checkpoint:

1. SIGTERM sets a flag on some ranks, at different moments.
2. At a step that all ranks know in advance, `SaveSchedule.decide` tells each rank that a stop was requested somewhere.
3. Every rank saves every run of the process (`_stop`), within the seconds that remain of the grace period.
4. The ranks agree once more whether all of them saved. If so, they raise `Stopped`; otherwise all of them fail.
"""

from __future__ import annotations

import gc
import logging
import uuid
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.save.attempt import Moment
from smddp.data.order import DataOrder
from smddp.display_text import shown_path
from smddp.distributed import Membership, PeerFailedError, Ranks
from smddp.errors import CheckpointError, TrainingDivergedError
from smddp.goodput import PartClock
from smddp.job import Job
from smddp.process.preemption import Stopped
from smddp.training.active_runs import OpenRun, active_runs
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.random_state import random_state_of, share_random_state
from smddp.training.save_schedule import Pause, SaveSchedule
from smddp.training.stop_deadline import seconds_to_save
from smddp.training.training_parts import TrainingParts

logger = logging.getLogger(__name__)

_THE_STOP = "the stop"

_ELSEWHERE = "a checkpoint failed on another rank"

_NEWS_SECONDS = 10.0  # bound on the wait for the error of another rank's failed save


class TrainingRun:
    """The checkpoints and stops of one training run; all ranks call its methods at the same points.

    ``clock`` measures the parts of the attempt, and ``stall`` is a further context around each save. ``why_not_inner``
    is the reason why this run can't be in another Trainer's ``state=``; None if it can.
    """

    def __init__(
        self,
        job: Job,
        membership: Membership,
        policy: CheckpointPolicy,
        parts: TrainingParts,
        *,
        clock: PartClock,
        stall: Callable[[], AbstractContextManager[object]] = nullcontext,
        why_not_inner: str | None = None,
    ) -> None:
        self.progress = parts.progress
        self._parts = parts
        self._job = job
        self._membership = membership
        self._policy = policy
        self._schedule = SaveSchedule(membership, policy)
        self._open: OpenRun | None = None
        self._order: DataOrder | None = None  # the order when the run started
        self._is_cold = True
        self._saved_as_finished = False
        self._metrics: dict[str, float] = {}
        self._metrics_step = 0
        self._clock = clock
        self._stall = stall
        self._told: set[str] = set()
        self._random_state: tuple[tuple[int, int], dict[str, Any]] | None = None
        self._why_not_inner = why_not_inner
        self.is_inner = False
        """Whether the checkpoints of another trainer contain this run, which saves and stops for it."""
        active_runs.add(self)

    @property
    def steps(self) -> int:
        """Optimizer steps taken since the very first start."""
        return self.progress.steps

    @property
    def has_started(self) -> bool:
        """Whether ``resume`` or ``begin_anew`` was called."""
        return self._open is not None

    def check_outer(self) -> None:
        """Raise ValueError if another Trainer saves the parts of this one."""
        if self.is_inner:
            raise ValueError(
                "this Trainer is in state= of another Trainer, whose loop it steps in: call loader, resume, save, "
                "epochs, steps_to, batches and finish_if of that Trainer"
            )

    def resume(self) -> bool:
        """Load the newest valid checkpoint, and save there from now on; return False if no checkpoint exists.

        Raise CheckpointError on every rank if the location can't be written, or none of its checkpoints can be loaded,
        and ValueError if another run of this process saves there or saves the parts of this one.
        """
        self.check_outer()
        run = self._open_run()
        found = run.checkpointer.load() is not None
        self._start(run)
        self._parts.restart()
        return found

    def rewind(self, event: str) -> None:
        """Go back to the newest checkpoint because of an event in the last step; the data continue after this step.

        Raise TrainingDivergedError if there is no checkpoint.
        """
        kept = ["progress", *self._parts.position_parts()]
        loaded = None if self._open is None else self._open.checkpointer.load(kept=kept)
        if loaded is None:
            raise TrainingDivergedError(
                f"{event}. on_nonfinite='rewind' needs a checkpoint to go back to, and there is none yet: save "
                "earlier, by CheckpointPolicy(every=…), or give on_nonfinite='skip'"
            )
        if self._membership.cluster.is_main:
            logger.warning("%s: back to the checkpoint of step %d; the data do not go back", event, loaded.step)
        self._clock.go_back(loaded.step, undone=self.progress.steps - loaded.step)
        self.progress.steps = loaded.step
        self._metrics = {}  # of a step that will be taken again
        self._schedule.start(loaded.step, saved=loaded.step)
        self._parts.restart()

    def begin_anew(self) -> None:
        """Save from now on, without a checkpoint to resume.

        Raise ValueError if a checkpoint exists that was not resumed; other errors as in ``resume``.
        """
        run = self._open_run()
        run.checkpointer.lock_location()
        if not run.checkpointer.is_empty():
            raise ValueError(
                f"{run.location} holds checkpoints, and this loop began without them: call trainer.resume() before its "
                "first forward pass, or take another run directory or checkpoint_s3_uri to begin anew"
            )
        self._start(run)

    @property
    def open_run(self) -> OpenRun:
        """The part of this run that lives until the script ends. Call it after the start."""
        assert self._open is not None
        return self._open

    def note(self, metrics: Mapping[str, float]) -> None:
        """Record metrics of this step, for a checkpoint of this step only."""
        if self._metrics_step != self.progress.steps:
            self._metrics_step, self._metrics = self.progress.steps, {}
        self._metrics.update(metrics)

    def save_or_stop_if_due(self, pause: Pause, *, evaluation_batches: int = 0) -> None:
        """Save, or save and stop, if due.

        Raise Stopped after the checkpoint of a stop, and CheckpointError if that save or too many others failed. While
        the model has other weights than the trained ones, nothing is saved, and a stop waits.
        """
        run, step = self._open, self.progress.steps
        if self.is_inner or not self._schedule.is_due(pause, step):
            return
        failure = None if run is None else _failure(run.checkpointer)
        decision = self._schedule.decide(
            pause,
            step,
            failed=failure is not None,
            held=pause.may_evaluate and any(each.is_held for each in active_runs.saving_runs()),
            report=None if run is None else run.checkpointer.last_report,
            metrics=self._metrics_digest,
            evaluation_batches=evaluation_batches,
        )
        if run is not None and decision.failed:
            raise failure or _failure(run.checkpointer, wait=_NEWS_SECONDS) or PeerFailedError(_ELSEWHERE)
        if decision.metrics_differ:
            self._tell_once(
                logging.WARNING,
                "the ranks logged different metrics at step %d, and those of rank 0 are shown and kept: sum over the "
                "ranks first, by trainer.sum()",
                step,
            )
        if decision.held:
            if decision.stop or decision.save:
                self._tell_of_weights(_THE_STOP if decision.stop else "a checkpoint that is due")
            return
        if decision.save:
            self.save()
        if decision.stop:  # before the first epoch, too: this run has nothing to save, and others may have
            self._stop(seconds_to_save(decision.stop_age, knows_slurm=self._membership.cluster.is_main))
        if run is not None and self._is_cold and pause is Pause.STEP:
            self._is_cold = False
            run.checkpointer.warm_up()  # the optimizer has its state now

    def begin_evaluation(self, random_state: dict[str, Any], batches: int) -> None:
        """Save before an evaluation of so many batches if it may take longer than a stop allows.

        Checkpoints of this moment contain ``random_state``, from before the evaluation, so that a resume can repeat it.
        Raise as `save_or_stop_if_due`.
        """
        if self._open is not None:
            self._random_state = (self._boundary, random_state)
            self.save_or_stop_if_due(Pause.EVALUATION, evaluation_batches=batches)

    def end_evaluation(self, seconds: float) -> None:
        """Record how long the evaluation took."""
        self._schedule.evaluated(seconds)

    def save(self, *, again: bool = False) -> None:
        """Save a checkpoint of this moment, unless a save of it has begun.

        ``again`` saves in any case, because parts beside the model may have changed.
        """
        if self._open is None or (self._is_saved and not again):
            return
        with self._clock.within("checkpoint"), self._stall():
            self._check()
            with self._random_state_to_save():
                self._open.checkpointer.save_moment(self._moment)
        self._open.saved()
        self._is_cold = False
        self._saved_as_finished = self.progress.finished
        self._schedule.saved()

    @property
    def saves_to(self) -> str | None:
        """The location that this run saves to, from its start until it is stopped or ends; else None."""
        return self._open.location if self._open is not None and self._open.is_open else None

    @property
    def is_held(self) -> bool:
        """Whether the model has other weights than the trained ones, and those are in no durable checkpoint.

        A save under way may still fail, and its repetition would save the exchanged weights.
        """
        if self._open is None or (self._is_saved and self._open.checkpointer.is_newest_durable):
            return False
        return self._parts.has_other_weights()

    def check_unsaved(self) -> None:
        """Raise the error that a save of this moment would raise, unless it is saved already."""
        if self._open is not None and not self._is_saved:
            self._check()

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable, in S3 too if the platform copies it there.

        Raise CheckpointError if ``seconds`` pass first.
        """
        assert self._open is not None
        with self._clock.within("checkpoint"), self._random_state_to_save():
            self._open.checkpointer.make_durable(self._moment, seconds=seconds)
        self._open.saved()

    @property
    def checkpoint_path(self) -> str | None:
        """The location of a checkpoint of this step; None before the first step, which needs none."""
        return None if self._open is None or self._boundary == (0, 0) else self._open.checkpointer.path(self.steps)

    @property
    def is_durable(self) -> bool:
        """Whether every step is durable, so that none would be lost if the process ended now. Any thread may ask."""
        steps = self.progress.steps
        return steps == 0 if self._open is None else self._open.checkpointer.is_durable(steps)

    def leave(self) -> None:
        """Let another run of this process save to the same location."""
        if self._open is not None:
            self._open.is_open = False

    def save_and_leave(self) -> None:
        """Make the current state durable, and save no more."""
        self.save()
        self.finish()
        self.leave()

    def leave_to_another(self, outer: Membership) -> None:
        """Let another Trainer save the parts of this one. Raise ValueError if it can't, or this run has started."""
        if self.is_inner or self.has_started:
            raise ValueError("a Trainer in state= must be new: give it to one Trainer, before it resumes or trains")
        if self._why_not_inner is not None:
            raise ValueError(self._why_not_inner)
        if outer.data_parallel != self._membership.data_parallel:
            raise ValueError(
                "by tensor parallelism, several ranks compute on the same batches for only one of two models, the "
                "Trainer's and that of the Trainer in its state=: divide both models over the same mesh"
            )
        self.is_inner = True
        active_runs.discard(self)

    def await_durable(self) -> None:
        """Wait until the last checkpoint is durable; raise CheckpointError if it failed, tolerated or not."""
        assert self._open is not None
        with self._clock.within("checkpoint"):
            self._open.checkpointer.wait()

    def finish(self) -> None:
        """Wait until the last checkpoint is durable. Repeat a failed save of this moment once, as a stop does.

        Each failure is logged if it is tolerated, else raised.
        """
        if self._open is None:
            return
        with self._clock.within("checkpoint"):
            if not self._open.checkpointer.finish() and self._is_saved:  # alike on all ranks, once the save has ended
                if self._membership.cluster.is_main:
                    logger.warning("the checkpoint of step %d is made again", self.progress.steps)
                self.save(again=True)
                self._open.checkpointer.finish()

    def _open_run(self) -> OpenRun:
        if self._open is not None:
            raise ValueError(
                "this training has begun already: call resume() once, before the first step, epoch or save"
            )
        order = self._order = self._parts.order
        location = self._job.checkpoint_location
        if _is_saved_to(location):
            gc.collect()  # a trainer without references does not count
        if _is_saved_to(location):
            raise ValueError(
                f"another Trainer of this process keeps its checkpoints in {location}: give each a name of its own, "
                'such as Trainer(..., name="generator")'
            )
        progress, positions = self.progress, {} if order is None else {"position": order}
        shared = {**self._parts.state, **positions, "progress": progress}
        run = OpenRun.begin(self._job, self._policy, progress, self._clock, shared, self._parts.per_rank_state())
        active_runs.add_open(run)
        return run

    def _start(self, run: OpenRun) -> None:
        self._open = run
        # The id is the same on all ranks, because any of them may save it.
        self.progress.training_id = self.progress.training_id or Ranks.current().on_main(lambda: uuid.uuid4().hex[:12])
        self._saved_as_finished = self.progress.finished
        share_random_state(self._membership, self.progress)
        run.begin_ledger()
        self._schedule.start(self.progress.steps, saved=run.checkpointer.loaded_step)

    def _check(self) -> None:
        try:
            self._parts.before_save()
        except Exception:
            self.leave()  # this run saves nothing any more
            raise

    @property
    def _boundary(self) -> tuple[int, int]:
        return self.progress.steps, self.progress.epoch

    @property
    def _is_saved(self) -> bool:
        """Whether the newest save is of this moment; it may still be under way, or have failed. Alike on all ranks."""
        if self._open is None or self._saved_as_finished != self.progress.finished:
            return False
        return self._open.checkpointer.newest == self._boundary

    @property
    def _moment(self) -> Moment:
        return Moment(
            step=self.progress.steps,
            epoch=self.progress.epoch,
            position=None if self._order is None else self._order.consumed,
            metrics={name: float(value) for name, value in self._metrics_now.items()},
        )

    def _random_state_to_save(self) -> AbstractContextManager[object]:
        """Return a context in which the random state is that from before an evaluation of this moment, if any."""
        if self._random_state is None or self._random_state[0] != self._boundary:
            return nullcontext()
        return random_state_of(self._random_state[1])

    @property
    def _metrics_now(self) -> Mapping[str, float]:
        return self._metrics if self._metrics_step == self.progress.steps else {}

    @property
    def _metrics_digest(self) -> float:
        """A positive number that depends on this step's metrics; 0 without metrics."""
        metrics = self._metrics_now
        return float(1 + zlib.crc32(repr(sorted(metrics.items())).encode())) if metrics else 0.0

    def _tell_of_weights(self, waiting: str) -> None:
        self._tell_once(
            logging.WARNING if waiting == _THE_STOP else logging.INFO,
            f"{waiting} is postponed: the model's weights are not those of step %d, and that step is not durable. Put "
            "them back after the evaluation, or call trainer.save(wait=True) before you exchange weights; trainer.ema "
            "needs no exchange",
            self.progress.steps,
        )

    def _tell_once(self, level: int, message: str, step: int) -> None:
        if self._membership.cluster.is_main and message not in self._told:
            self._told.add(message)
            logger.log(level, message, step)

    def _stop(self, seconds: float) -> NoReturn:
        # Order: 1. save every run of the process; 2. agree with the other ranks in any case, so that a rank whose save
        # failed leaves none waiting; 3. close all saves of the process; 4. raise.
        step, epoch = self._boundary
        runs = active_runs.saving_runs()
        failure: Exception | None = None
        try:
            active_runs.make_durable(seconds)
        except Exception as error:  # not swallowed: raised below, once all ranks know of it
            failure = error
        if self._schedule.any_failed(step, failed=failure is not None):
            failure = failure or PeerFailedError("another rank could not save it")
            last_resort = "" if self._open is None else f"; {self._open.checkpointer.last_resort()}"
            raise CheckpointError(
                f"told to stop at step {step}, and its checkpoint cannot be relied on: {failure}{last_resort}"
            ) from failure
        if self._membership.cluster.is_main:
            saved = [shown_path(path) for run in runs if (path := run.checkpoint_path) is not None]
            are = "checkpoint is" if len(saved) == 1 else "checkpoints are"
            there_is = f"the {are} {', '.join(saved)}" if saved else "nothing was to be saved"
            logger.info("stopped at step %d, in epoch %d: %s", step, epoch + 1, there_is)
        active_runs.close_stopped()
        raise Stopped


def _is_saved_to(location: str) -> bool:
    return any(run.saves_to == location for run in active_runs.saving_runs())


def _failure(checkpointer: Checkpointer, *, wait: float = 0.0) -> Exception | None:
    """Return the error of a failed save that the policy no longer tolerates, or None; wait ``wait`` seconds for it."""
    try:
        if wait:
            checkpointer.wait(wait)
        else:
            checkpointer.check()
    except CheckpointError as error:  # not swallowed: raised once all ranks know
        return error
    return None
