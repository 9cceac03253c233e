"""Never lose more than seconds of work: decide when to save, and when to stop.

It joins three things that must agree: how far training has come, its checkpoints, and the ranks' agreement to stop. The
trainer calls it at the steps that `SaveSchedule.next_step` names, when all ranks are between the same two steps.

How a stop becomes a checkpoint:

1. SIGTERM sets a flag on some ranks, at different moments.
2. At a step that all ranks know in advance, `Agreement.decide` tells each rank that a stop was requested somewhere.
3. Every rank saves every run of the process (`_stop`), within the seconds that remain of the grace period.
4. The ranks agree once more whether each of them saved. Only then do they raise `Stopped`; else all of them fail.
"""

from __future__ import annotations

import gc
import logging
import math
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

from smddp.checkpoint import Checkpointer, SaveReport
from smddp.checkpoint.run_state import Stateful, capture_random_state, restore_random_state
from smddp.checkpoint.save.attempt import Moment
from smddp.data.order import DataOrder
from smddp.distributed import Agreement, Membership, PeerFailedError, Ranks
from smddp.errors import CheckpointError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.active_runs import OpenRun, Progress, active_runs
from smddp.training.auto_interval import AutoInterval
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.stop_deadline import seconds_to_save

logger = logging.getLogger(__name__)

_LONG_EVALUATION_SECONDS = 30.0
"""If an evaluation took longer, the next one begins with a checkpoint: a stop may come in it, and has only 90 s."""

_THE_STOP = "the stop"

_ELSEWHERE = "a checkpoint failed on another rank"

_NEWS_SECONDS = 10.0  # bound on the wait for the error of another rank's failed save


class SaveSchedule:
    """The checkpoints and stops of one training run; all ranks call its methods at the same points.

    ``before_save`` runs on all ranks before each save, and raises if nothing should be saved. ``has_other_weights``
    tells whether the weights differ from the last step's, as in the evaluation of an average. ``stall`` is entered
    while a save holds up training.
    """

    def __init__(
        self,
        job: Job,
        membership: Membership,
        policy: CheckpointPolicy,
        progress: Progress,
        *,
        before_save: Callable[[], None],
        has_other_weights: Callable[[], bool] = lambda: False,
        stall: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.progress = progress
        self._job = job
        self._is_main = membership.cluster.is_main
        self._policy = policy
        self._every = policy.every if isinstance(policy.every, int) else None
        self._agreement = Agreement(membership.ranks, stop_signal, save_seconds=policy.seconds)
        self._auto: AutoInterval | None = None
        if policy.every == "auto" and self._is_main:  # only rank 0's clock counts
            self._auto = AutoInterval(policy.seconds_between_failures(membership.cluster.node_count))
        self._measured: SaveReport | None = None
        self._run: OpenRun | None = None
        self._order: DataOrder | None = None
        self._is_cold = True
        self._metrics: dict[str, float] = {}
        self._metrics_step = 0
        self._told_of_metrics = False
        self._last_due = 0  # how many checkpoints ``every`` has requested
        self._before_save = before_save
        self._has_other_weights = has_other_weights
        self._told_waiting: set[str] = set()
        self._stall = stall
        self._kept_random_state: tuple[tuple[int, int], dict[str, Any]] | None = None
        self._evaluation_began: float | None = None
        self._evaluation_seconds = math.inf  # of the last one; unknown before the first
        self.on_begin: Callable[[OpenRun], None] | None = None
        """Called once the run knows the step that it continues from."""
        active_runs.add(self)

    @property
    def steps(self) -> int:
        """Optimizer steps taken since the very first start."""
        return self.progress.steps

    @property
    def has_started(self) -> bool:
        """Whether ``resume`` or ``begin_anew`` was called."""
        return self._run is not None

    @property
    def next_step(self) -> int:
        """The next step after which ``after_step`` must be called."""
        if self._every is None:
            return self._agreement.next_step
        return min(self._agreement.next_step, (self.progress.steps // self._every + 1) * self._every)

    def resume(self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None) -> bool:
        """Load the newest valid checkpoint into the state, and save there from now on; False if no checkpoint exists.

        ``state`` is the same on all ranks, ``per_rank`` is each rank's own; progress and the position in ``order`` are
        added. Raise CheckpointError on every rank if the location can't be written, or none of its checkpoints can be
        loaded, and ValueError if another run of this process saves there.
        """
        run = self._open(state, per_rank, order)
        found = run.checkpointer.load() is not None
        self._last_due = self.progress.steps // (self._every or 1)
        self._begin(run)
        if found and self._is_main:
            logger.info("resumed at step %d, in epoch %d", self.progress.steps, self.progress.epoch + 1)
        return found

    def begin_anew(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None
    ) -> None:
        """Save from now on, without a checkpoint to resume; the arguments are the same as for ``resume``.

        Raise ValueError if a checkpoint exists, which should have been resumed before the first step; else as
        ``resume``.
        """
        run = self._open(state, per_rank, order)
        run.checkpointer.lock_location()
        if not run.checkpointer.is_empty():
            raise ValueError(
                f"{run.location} holds checkpoints, and this loop began without them: call trainer.resume() before its "
                "first forward pass, or take another run directory or checkpoint_s3_uri to begin anew"
            )
        self._begin(run)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Record metrics of this step, for a checkpoint of this step only."""
        if self._metrics_step != self.progress.steps:
            self._metrics_step, self._metrics = self.progress.steps, {}
        self._metrics.update(metrics)

    def after_step(self) -> None:
        """Save if a checkpoint is due, and call ``between_steps`` at the next agreement; raise as it does."""
        step = self.progress.steps
        if self._every is not None and step // self._every > self._last_due:  # a batch may have several steps
            self._last_due = step // self._every
            self.save()
        if step >= self._agreement.next_step:
            self.between_steps()
        if self._is_cold and self._run is not None:
            self._is_cold = False
            self._run.checkpointer.warm_up()  # the optimizer has its state now

    def begin_evaluation(self) -> None:
        """Save before an evaluation that may take longer than a stop allows; all ranks call it.

        Checkpoints of this moment contain the random state from before the evaluation, so that a resume can repeat it.
        Raise as ``between_steps``.
        """
        if self._run is not None:
            self._kept_random_state = (self._boundary, capture_random_state())
            self.between_steps(save=self._evaluation_seconds > _LONG_EVALUATION_SECONDS, evaluates=True)
            self._evaluation_began = time.monotonic()

    def end_evaluation(self) -> None:
        """Measure how long the evaluation took."""
        if self._evaluation_began is not None:
            self._evaluation_seconds = time.monotonic() - self._evaluation_began
            self._evaluation_began = None

    def between_steps(self, *, save: bool = False, evaluates: bool = False) -> None:
        """Ask all ranks whether to stop or to save, and whether a save has failed.

        Rank 0's ``save`` requests a save in any case. ``evaluates`` says that the script may evaluate exchanged
        weights: then nothing is saved, and a stop waits. Raise Stopped after the checkpoint of a stop, and
        CheckpointError if too many saves failed, or the save before a stop.
        """
        run, step = self._run, self.progress.steps
        failure = None if run is None else _failure(run.checkpointer)
        report = None if run is None else run.checkpointer.last_report
        stall = 0.0 if report is None else report.stall_seconds
        held = evaluates and any(each.is_held for each in active_runs.saving_runs())
        decision = self._agreement.decide(
            step, failed=failure is not None, held=held, stall=stall, save=save, metrics=self._metrics_digest
        )
        if run is None:  # before the first epoch there is nothing to save or to lose
            if decision.stop:
                raise Stopped
            return
        if decision.failed:
            raise failure or _failure(run.checkpointer, wait=_NEWS_SECONDS) or PeerFailedError(_ELSEWHERE)
        if self._auto is not None and report is not None and report is not self._measured:
            self._measured = report
            self._agreement.save_seconds = self._auto.after(stall=decision.stall, durable=report.durable_seconds)
        if decision.held and (decision.stop or decision.save):
            self._tell_of_weights(_THE_STOP if decision.stop else "a checkpoint that is due")
        elif decision.stop:
            self._stop(run, seconds_to_save(decision.stop_age, knows_slurm=self._is_main))
        if decision.metrics_differ and self._is_main and not self._told_of_metrics:
            self._told_of_metrics = True
            logger.warning(
                "the ranks logged different metrics at step %d, and those of rank 0 are shown and kept: sum over the "
                "ranks first, by trainer.sum()",
                step,
            )
        if decision.save and not decision.held:
            self.save()

    def _tell_of_weights(self, waiting: str) -> None:
        if self._is_main and waiting not in self._told_waiting:
            self._told_waiting.add(waiting)
            logger.log(
                logging.WARNING if waiting == _THE_STOP else logging.INFO,
                "%s waits: the weights that are evaluated are others than step %d left, and those are in no "
                "checkpoint. Put them back afterwards; call trainer.save() before you exchange weights, and nothing "
                "has to wait; trainer.ema needs no exchange",
                waiting,
                self.progress.steps,
            )

    def save(self, *, again: bool = False) -> None:
        """Save a checkpoint of this moment, unless a save of it has begun.

        ``again`` saves in any case, because parts beside the model may have changed.
        """
        if self._run is None or (self._is_saved and not again):
            return
        with self._stall():
            self._check()
            with self._random_state():
                self._run.checkpointer.save_moment(self._moment)
        self._is_cold = False
        self._agreement.saved()

    @property
    def saves_to(self) -> str | None:
        """The location that this run saves to, from its start until it is stopped or ends; else None."""
        return self._run.location if self._run is not None and self._run.is_open else None

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained weights are in no checkpoint."""
        return self._run is not None and not self._is_saved and self._has_other_weights()

    def check_unsaved(self) -> None:
        """Raise an error if this moment is unsaved and may not be saved."""
        if self._run is not None and not self._is_saved:
            self._check()

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable, in S3 too if the platform copies it there.

        Raise CheckpointError if ``seconds`` pass first.
        """
        assert self._run is not None
        with self._random_state():
            self._run.checkpointer.make_durable(self._moment, seconds=seconds)

    @property
    def is_durable(self) -> bool:
        """Whether every step is durable, so that none would be lost if the process ended now. Any thread may ask."""
        steps = self.progress.steps
        return steps == 0 if self._run is None else self._run.checkpointer.is_durable(steps)

    def leave(self) -> None:
        """Let another run of this process save to the same location."""
        if self._run is not None:
            self._run.is_open = False

    def leave_to_another(self) -> None:
        """Hand this run's checkpoints over to another trainer."""
        active_runs.discard(self)

    def finish(self) -> None:
        """Wait until the last checkpoint is durable, or log that it failed."""
        if self._run is not None:
            self._run.checkpointer.finish()

    def _open(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None
    ) -> OpenRun:
        assert self._run is None, "a run begins once"
        self._order = order
        location = self._job.checkpoint_location
        if _is_saved_to(location):
            gc.collect()  # a trainer without references does not count
        if _is_saved_to(location):
            raise ValueError(
                f"another Trainer of this process keeps its checkpoints in {location}: give each a name of its own, "
                'such as Trainer(..., name="generator")'
            )
        progress, positions = self.progress, {} if order is None else {"position": order}
        parts = {**state, **positions, "progress": progress}
        run = OpenRun.begin(self._job, self._policy, progress, parts, per_rank)
        active_runs.add_open(run)
        return run

    def _begin(self, run: OpenRun) -> None:
        self._run = run
        # The id is the same on all ranks, because any of them may save it.
        self.progress.run = self.progress.run or Ranks.current().on_main(lambda: uuid.uuid4().hex[:12])
        self._agreement.start(self.progress.steps)
        if self.on_begin is not None:
            self.on_begin(run)

    def _check(self) -> None:
        try:
            self._before_save()
        except Exception:
            self.leave()  # this run saves nothing any more
            raise

    @property
    def _metrics_digest(self) -> float:
        """A positive number that depends on this step's metrics; 0 without metrics."""
        metrics = self._metrics_now
        return float(1 + zlib.crc32(repr(sorted(metrics.items())).encode())) if metrics else 0.0

    @property
    def _boundary(self) -> tuple[int, int]:
        return self.progress.steps, self.progress.epoch

    @property
    def _is_saved(self) -> bool:
        """Whether the newest save is of this moment; it may still be under way."""
        return self._run is not None and self._run.checkpointer.newest == self._boundary

    @property
    def _moment(self) -> Moment:
        return Moment(
            step=self.progress.steps,
            epoch=self.progress.epoch,
            position=None if self._order is None else self._order.consumed,
            metrics={name: float(value) for name, value in self._metrics_now.items()},
        )

    @contextmanager
    def _random_state(self) -> Iterator[None]:
        """Restore, while the context lasts, the random state that was kept for this moment, if any."""
        if self._kept_random_state is None or self._kept_random_state[0] != self._boundary:
            yield
            return
        present = capture_random_state()
        restore_random_state([self._kept_random_state[1]], rank=0)
        try:
            yield
        finally:
            restore_random_state([present], rank=0)

    @property
    def _metrics_now(self) -> Mapping[str, float]:
        return self._metrics if self._metrics_step == self.progress.steps else {}

    def _stop(self, run: OpenRun, seconds: float) -> NoReturn:
        # Order: 1. check that every run may be saved; 2. save every run, all within one deadline, but with at least a
        # second each; 3. agree with the other ranks in any case, so that a rank whose save failed leaves none waiting;
        # 4. close all saves of the process; 5. raise.
        step, epoch = self._boundary
        failure: Exception | None = None
        deadline = time.monotonic() + seconds
        runs = active_runs.saving_runs()  # a stop ends all runs of the process
        try:
            for each in runs:
                each.check_unsaved()
            for each in runs:
                each.make_durable(max(deadline - time.monotonic(), 1.0))
        except Exception as error:  # not swallowed: raised below, once all ranks know of it
            failure = error
        if self._agreement.decide(step, failed=failure is not None).failed:
            failure = failure or PeerFailedError("another rank could not save it")
            raise CheckpointError(
                f"told to stop at step {step}, and its checkpoint cannot be relied on: {failure}; "
                f"{run.checkpointer.last_resort()}"
            ) from failure
        if self._is_main:
            there_is = (
                f"the checkpoint is {run.checkpointer.path(step)}" if step or epoch else "nothing was to be saved"
            )
            logger.info("stopped at step %d, in epoch %d: %s", step, epoch + 1, there_is)
        for ended in active_runs.open_runs():
            ended.is_open = False
            ended.was_stopped = True
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
    except Exception as error:  # not swallowed: raised once all ranks know
        return error
    return None
