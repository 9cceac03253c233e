"""Never lose more than seconds of work: decide when to save, when to stop, and what to resume from.

It joins three things that must agree: how far training has come, its checkpoints, and the ranks' agreement to stop. The
trainer calls it at each boundary, when all ranks are between the same two steps.

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
import os
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from smddp.checkpoint import SaveReport
from smddp.checkpoint.restore.restoring import Stateful
from smddp.data.order import DataOrder
from smddp.distributed import Agreement, Membership, PeerFailedError, Ranks
from smddp.errors import CheckpointError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from smddp.process.slurm_grace import seconds_left
from smddp.training.active_runs import active_runs
from smddp.training.checkpoint_policy import AutoInterval, CheckpointPolicy
from smddp.training.run_saves import Moment, RunSaves

logger = logging.getLogger(__name__)

STOP_SECONDS = 90.0
"""Bound in seconds, from SIGTERM until the last checkpoint is durable. SageMaker sends SIGKILL after 120 s, and the
report of a checkpoint that is not durable takes time, too."""

_LONG_EVALUATION_SECONDS = 30.0
"""If an evaluation took longer, the next one begins with a checkpoint: a stop may come in it, and has only 90 s."""

_PART_OF_GRACE = STOP_SECONDS / 120
"""The same fraction, for another grace period."""

_THE_STOP = "the stop"

LEAST_SECONDS = 10.0
"""Seconds that the last checkpoint gets in any case, even if the step during which SIGTERM came took most of them."""


@dataclass(slots=True)
class Progress:
    """The progress of training; part of each checkpoint."""

    steps: int = 0
    """Optimizer steps taken since the very first start; one that fp16's loss scaler skipped counts too."""

    epoch: int = 0
    """The epoch under way, from 0."""

    finished: bool = False
    """Whether the script has ended the training, by ``finish_if``."""

    run: str = ""
    """The id of this run, the same after each resume; empty until the run begins."""

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters."""
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.finished = bool(state.get("finished", False))  # absent in older checkpoints
        self.run = state.get("run", "")  # absent in older checkpoints


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
        *,
        before_save: Callable[[], None],
        has_other_weights: Callable[[], bool] = lambda: False,
        stall: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.progress = Progress()
        self._job = job
        self._is_main = membership.cluster.is_main
        self._policy = policy
        self._every = policy.every if isinstance(policy.every, int) else None
        self._agreement = Agreement(membership, stop_signal, save_seconds=policy.seconds)
        self._auto: AutoInterval | None = None
        if policy.every == "auto" and self._is_main:  # only rank 0's clock counts
            self._auto = AutoInterval(policy.seconds_between_failures(membership.cluster.node_count))
        self._measured: SaveReport | None = None
        self._saves: RunSaves | None = None
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
        self._evaluation_began: float | None = None
        self._evaluation_seconds = math.inf  # of the last one; unknown before the first
        self.on_begin: Callable[[RunSaves], None] | None = None
        """Called once the run knows the step that it continues from."""
        active_runs.add(self)

    @property
    def steps(self) -> int:
        """Optimizer steps taken since the very first start."""
        return self.progress.steps

    @property
    def has_started(self) -> bool:
        """Whether ``resume`` or ``begin_anew`` was called."""
        return self._saves is not None

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
        saves = self._open(state, per_rank, order)
        found = saves.load()
        self._last_due = self.progress.steps // (self._every or 1)
        self._begin(saves)
        if found and self._is_main:
            logger.info("resumed at step %d, in epoch %d", self.progress.steps, self.progress.epoch)
        return found

    def begin_anew(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None
    ) -> None:
        """Save from now on, without a checkpoint to resume; the arguments are those of ``resume``.

        Raise ValueError if a checkpoint exists, which should have been resumed before the first step; else as
        ``resume``.
        """
        saves = self._open(state, per_rank, order)
        saves.begin_anew()
        self._begin(saves)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Record metrics of this step, for a checkpoint of this step only."""
        if self._metrics_step != self.progress.steps:
            self._metrics_step, self._metrics = self.progress.steps, {}
        self._metrics.update(metrics)

    def after_step(self) -> None:
        """Save if a checkpoint is due, and ask the other ranks if that is due; raise as ``between_steps``."""
        step = self.progress.steps
        if self._every is not None and step // self._every > self._last_due:  # a batch may have several steps
            self._last_due = step // self._every
            self.save()
        if step >= self._agreement.next_step:
            self.between_steps()
        if self._is_cold and self._saves is not None:
            self._is_cold = False
            self._saves.warm_up()  # the optimizer has its state now

    def begin_evaluation(self) -> None:
        """Save before an evaluation that may take longer than a stop allows; all ranks call it.

        Checkpoints of this moment contain the random state from before the evaluation, so that a resume can repeat it.
        Raise as ``between_steps``.
        """
        if self._saves is not None:
            self._saves.keep_random_state(self._moment)
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
        saves, step = self._saves, self.progress.steps
        failure = None if saves is None else saves.failure()
        report = None if saves is None else saves.last_report
        stall = 0.0 if report is None else report.stall_seconds
        held = evaluates and any(run.is_held for run in active_runs.saving_runs())
        decision = self._agreement.decide(
            step, failed=failure is not None, held=held, stall=stall, save=save, metrics=self._metrics_digest
        )
        if saves is None:  # before the first epoch there is nothing to save or to lose
            if decision.stop:
                raise Stopped
            return
        if decision.failed:
            raise failure or saves.await_failure()
        if self._auto is not None and report is not None and report is not self._measured:
            self._measured = report
            self._agreement.save_seconds = self._auto.after(stall=decision.stall, durable=report.durable_seconds)
        if decision.held and (decision.stop or decision.save):
            self._tell_of_weights(_THE_STOP if decision.stop else "a checkpoint that is due")
        elif decision.stop:
            self._stop(saves, self._seconds_to_save(decision.stop_age))
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

    def _seconds_to_save(self, stop_age: float) -> float:
        """Return how long the last checkpoint may take: ten seconds or more.

        On rank 0, which knows Slurm's deadline, it is at most three quarters of the time left.
        """
        seconds = STOP_SECONDS - stop_age
        if self._is_main and (left := seconds_left(os.environ, since=stop_age)) is not None:
            logger.info("Slurm ends this job in %.0f s", left)
            seconds = min(seconds, _PART_OF_GRACE * left)
        return max(seconds, LEAST_SECONDS)

    def save(self, *, again: bool = False) -> None:
        """Save a checkpoint of this moment, unless one exists.

        ``again`` saves in any case, because parts beside the model may have changed.
        """
        saves = self._saves
        if saves is None or (saves.has(self._moment) and not again):
            return
        with self._stall():
            self._check()
            saves.save(self._moment, position=self._position, metrics=self._metrics_now)
        self._is_cold = False
        self._agreement.saved()

    @property
    def saves_to(self) -> str | None:
        """The location that this run saves to, from its start until it is stopped or ends; else None."""
        return self._saves.place if self._saves is not None and self._saves.is_open else None

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained weights are in no checkpoint."""
        return self._saves is not None and not self._saves.has(self._moment) and self._has_other_weights()

    def check_unsaved(self) -> None:
        """Raise an error if this moment is unsaved and may not be saved."""
        if self._saves is not None and not self._saves.has(self._moment):
            self._check()

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable; raise CheckpointError if it is not in so many seconds."""
        assert self._saves is not None
        self._saves.make_durable(self._moment, position=self._position, metrics=self._metrics_now, seconds=seconds)

    @property
    def is_durable(self) -> bool:
        """Whether every step is durable, so that none would be lost if the process ended now. Any thread may ask."""
        return self.progress.steps == 0 if self._saves is None else self._saves.is_durable(self.progress.steps)

    def leave(self) -> None:
        """Let another run of this process save to the same location."""
        if self._saves is not None:
            self._saves.is_open = False

    def leave_to_another(self) -> None:
        """Hand this run's checkpoints over to another trainer."""
        active_runs.discard(self)

    def finish(self) -> None:
        """Wait until the last checkpoint is durable, or log that it failed."""
        if self._saves is not None:
            self._saves.finish()

    def _open(
        self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None
    ) -> RunSaves:
        assert self._saves is None, "a run begins once"
        self._order = order
        positions = {} if order is None else {"position": order}
        place = self._job.checkpoint_location
        if _is_saved_to(place):
            gc.collect()  # a trainer without references is no obstacle
        if _is_saved_to(place):
            raise ValueError(
                f"another Trainer of this process keeps its checkpoints in {place}: give each a name of its own, such "
                'as Trainer(..., name="generator")'
            )
        progress = self.progress
        parts = {**state, **positions, "progress": progress}
        return RunSaves(self._job, self._policy, parts, per_rank, lambda: progress.steps)

    def _begin(self, saves: RunSaves) -> None:
        self._saves = saves
        # The id is the same on all ranks, because any of them may save it.
        self.progress.run = self.progress.run or Ranks.current().on_main(lambda: uuid.uuid4().hex[:12])
        self._agreement.start(self.progress.steps)
        if self.on_begin is not None:
            self.on_begin(saves)

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
    def _moment(self) -> Moment:
        return self.progress.steps, self.progress.epoch

    @property
    def _position(self) -> int | None:
        return None if self._order is None else self._order.consumed

    @property
    def _metrics_now(self) -> Mapping[str, float]:
        return self._metrics if self._metrics_step == self.progress.steps else {}

    def _stop(self, saves: RunSaves, seconds: float) -> NoReturn:
        # Order: 1. check that every run may be saved; 2. save every run, all within one deadline, but with at least a
        # second each; 3. agree with the other ranks in any case, so that a rank whose save failed leaves none waiting;
        # 4. close all saves of the process; 5. raise.
        step, epoch = self._moment
        failure: Exception | None = None
        deadline = time.monotonic() + seconds
        runs = active_runs.saving_runs()  # a stop ends all runs of the process
        try:
            for run in runs:
                run.check_unsaved()
            for run in runs:
                run.make_durable(max(deadline - time.monotonic(), 1.0))
        except Exception as error:  # not swallowed: raised below, once all ranks know of it
            failure = error
        if self._agreement.decide(step, failed=failure is not None).failed:
            failure = failure or PeerFailedError("another rank could not save it")
            raise CheckpointError(
                f"told to stop at step {step}, and its checkpoint cannot be relied on: {failure}; {saves.last_resort()}"
            ) from failure
        if self._is_main:
            there_is = f"the checkpoint is {saves.where(self._moment)}" if step or epoch else "nothing was to be saved"
            logger.info("stopped at step %d, in epoch %d: %s", step, epoch, there_is)
        for each in active_runs.open_saves():
            each.is_open = False
            each.was_stopped = True
        raise Stopped


def _is_saved_to(place: str) -> bool:
    return any(run.saves_to == place for run in active_runs.saving_runs())
