"""Never lose more than seconds of work: when to save, when to stop, and where to go on.

It joins three things that must not be apart: how far training has come, the checkpoints of it, and the agreement of
all ranks to stop. The trainer tells it of each boundary, a moment at which all ranks stand between two steps.
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
from smddp.training.auto_interval import AutoInterval
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.open_runs import open_runs
from smddp.training.run_saves import Moment, RunSaves

logger = logging.getLogger(__name__)

STOP_SECONDS = 90.0
"""How long after SIGTERM the last checkpoint must be durable. SageMaker sends SIGKILL after 120 s, and what is to be
said of a checkpoint that is not takes time too."""

_LONG_EVALUATION_SECONDS = 30.0
"""An evaluation that took longer begins with a checkpoint: a stop may come in it, and it must be over in 90 s."""

_PART_OF_GRACE = STOP_SECONDS / 120
"""The same part of another grace."""

_THE_STOP = "the stop"

LEAST_SECONDS = 10.0
"""How long the last checkpoint has in any case, also where the step in which SIGTERM came took most of that time."""


@dataclass(slots=True)
class Progress:
    """How far training has come; a part of each checkpoint."""

    steps: int = 0
    """Optimizer steps taken since the very first start; one that fp16's loss scaler skipped counts too."""

    epoch: int = 0
    """The epoch under way, from 0."""

    finished: bool = False
    """Whether the script has said that no further step is wanted."""

    run: str = ""
    """What tells this run from others, after each resume too; empty until it begins."""

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the counters were."""
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.finished = bool(state.get("finished", False))  # older checkpoints have none
        self.run = state.get("run", "")  # a checkpoint of an earlier version has none


class RunCheckpoints:
    """The checkpoints and stops of one training run; all ranks call its methods at the same points.

    Args:
        job: Where checkpoints go.
        membership: The ranks.
        policy: When to save.
        before_save: Called on all ranks before each save; it raises if nothing should be saved.
        has_other_weights: Whether the weights are others than the last step left, as in the evaluation of an average.
        stall: Entered for as long as a save holds training up.
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
        if policy.every == "auto" and self._is_main:  # whose clock alone counts
            self._auto = AutoInterval(policy.seconds_between_failures(membership.cluster.node_count))
        self._measured: SaveReport | None = None
        self._saves: RunSaves | None = None
        self._order: DataOrder | None = None
        self._is_cold = True
        self._metrics: dict[str, float] = {}
        self._metrics_step = 0
        self._told_of_metrics = False
        self._last_due = 0  # how many checkpoints ``every`` has asked for
        self._before_save = before_save
        self._has_other_weights = has_other_weights
        self._told_waiting: set[str] = set()
        self._stall = stall
        self._evaluation_began: float | None = None
        self._evaluation_seconds = math.inf  # of the last one; the first may take any time
        self.on_begin: Callable[[RunSaves], None] | None = None
        """Called once the run knows where it goes on."""
        open_runs.add(self)

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
        """The next step after which something is due, and ``after_step`` must be called."""
        if self._every is None:
            return self._agreement.next_step
        return min(self._agreement.next_step, (self.progress.steps // self._every + 1) * self._every)

    def resume(self, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], order: DataOrder | None) -> bool:
        """Load the newest valid checkpoint into the state, if there is one, and save there from now on.

        Args:
            state: By name, what has a ``state_dict`` and is the same on all ranks; progress and position are added.
            per_rank: Likewise, what each rank has its own of.
            order: The position in the training data, if there is any.

        Returns:
            Whether there was a checkpoint.

        Raises:
            CheckpointError: Nothing can be saved there, or nothing loaded of what is there; on every rank.
            ValueError: Another run of this process saves there.
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
        """Save from now on, where there is no checkpoint yet: the arguments are those of ``resume``.

        Raises:
            ValueError: There is one, which should have been resumed from before the first step; or as ``resume``.
            CheckpointError: Nothing can be saved there; on every rank.
        """
        saves = self._open(state, per_rank, order)
        saves.begin_anew()
        self._begin(saves)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Keep what was measured at this step, for a checkpoint of this step and no other."""
        if self._metrics_step != self.progress.steps:
            self._metrics_step, self._metrics = self.progress.steps, {}
        self._metrics.update(metrics)

    def after_step(self) -> None:
        """Save if a checkpoint is due, and ask the other ranks if it is time to.

        Raises:
            Stopped: If the job was told to stop, after a checkpoint.
            CheckpointError: If saving failed too often, or before a stop.
        """
        step = self.progress.steps
        if self._every is not None and step // self._every > self._last_due:  # a batch may have had several steps
            self._last_due = step // self._every
            self.save()
        if step >= self._agreement.next_step:
            self.between_steps()
        if self._is_cold and self._saves is not None:
            self._is_cold = False
            self._saves.warm_up()  # now that the optimizer has its state

    def begin_evaluation(self) -> None:
        """Save before an evaluation that may outlast the time that a stop leaves; all ranks call it.

        What the evaluation draws at random is not in the checkpoints of this moment, so that it can be repeated.

        Raises:
            Stopped, CheckpointError: As ``between_steps``.
        """
        if self._saves is not None:
            self._saves.keep_random_state(self._moment)
            self.between_steps(save=self._evaluation_seconds > _LONG_EVALUATION_SECONDS, evaluates=True)
            self._evaluation_began = time.monotonic()

    def end_evaluation(self) -> None:
        """Measure how long it took."""
        if self._evaluation_began is not None:
            self._evaluation_seconds = time.monotonic() - self._evaluation_began
            self._evaluation_began = None

    def between_steps(self, *, save: bool = False, evaluates: bool = False) -> None:
        """Ask all ranks whether to stop or to save, and whether a save has failed.

        Args:
            save: Whether to save in any case; rank 0 decides.
            evaluates: Whether the script may be evaluating other weights than it trains. While it does, nothing is
                saved, and a stop waits.

        Raises:
            Stopped: If the job was told to stop, after a checkpoint.
            CheckpointError: If saving failed too often, or before a stop.
        """
        saves, step = self._saves, self.progress.steps
        failure = None if saves is None else saves.failure()
        report = None if saves is None else saves.last_report
        stall = 0.0 if report is None else report.stall_seconds
        held = evaluates and any(run.is_held for run in open_runs.that_save())
        decision = self._agreement.decide(
            step, failed=failure is not None, held=held, stall=stall, save=save, metrics=self._metrics_digest
        )
        if saves is None:  # before the first epoch there is nothing to save, and nothing to lose
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
                *(waiting, self.progress.steps),
            )

    def _seconds_to_save(self, stop_age: float) -> float:
        """Return how long the last checkpoint may take; on rank 0 no longer than Slurm allows, if that is known."""
        seconds = STOP_SECONDS - stop_age
        if self._is_main and (left := seconds_left(os.environ, since=stop_age)) is not None:
            logger.info("Slurm ends this job in %.0f s", left)
            seconds = min(seconds, _PART_OF_GRACE * left)
        return max(seconds, LEAST_SECONDS)

    def save(self, *, again: bool = False) -> None:
        """Save a checkpoint of this moment, unless there is one.

        Args:
            again: Save in any case: what is kept beside the model may have changed.
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
        """Where this run saves, from its start until it was stopped or ended."""
        return self._saves.place if self._saves is not None and self._saves.is_open else None

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained ones are in no checkpoint."""
        return self._saves is not None and not self._saves.has(self._moment) and self._has_other_weights()

    def check_unsaved(self) -> None:
        """See that this moment may be saved, unless it is saved already."""
        if self._saves is not None and not self._saves.has(self._moment):
            self._check()

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable.

        Raises:
            CheckpointError: It could not be saved, or not in so many seconds.
        """
        assert self._saves is not None
        self._saves.make_durable(self._moment, position=self._position, metrics=self._metrics_now, seconds=seconds)

    @property
    def is_durable(self) -> bool:
        """Whether no step that was taken would be lost if the process ended now; any thread may ask."""
        return self.progress.steps == 0 if self._saves is None else self._saves.is_durable(self.progress.steps)

    def leave(self) -> None:
        """Let another run of this process save where this one did."""
        if self._saves is not None:
            self._saves.is_open = False

    def leave_to_another(self) -> None:
        """Let another run save what this one would have: nothing here is to be saved any more."""
        open_runs.discard(self)

    def finish(self) -> None:
        """Wait until the last checkpoint is durable, or say that it is not."""
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
            gc.collect()  # a trainer that nobody holds any more is no obstacle
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
        # The same on all ranks: which of them saves it is open.
        self.progress.run = self.progress.run or Ranks.current().on_main(lambda: uuid.uuid4().hex[:12])
        self._agreement.start(self.progress.steps)
        if self.on_begin is not None:
            self.on_begin(saves)

    def _check(self) -> None:
        try:
            self._before_save()
        except Exception:
            self.leave()  # nothing of this run will be saved any more
            raise

    @property
    def _metrics_digest(self) -> float:
        """Return a number that stands for the metrics of this step; 0 if there are none."""
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
        step, epoch = self._moment
        failure: Exception | None = None
        deadline = time.monotonic() + seconds
        runs = open_runs.that_save()  # the stop of one is the end of all
        try:
            for run in runs:
                run.check_unsaved()
            for run in runs:
                run.make_durable(max(deadline - time.monotonic(), 1.0))
        except Exception as error:  # not swallowed: raised below, once all ranks know
            failure = error
        if self._agreement.decide(step, failed=failure is not None).failed:
            failure = failure or PeerFailedError("another rank could not save it")
            raise CheckpointError(
                f"told to stop at step {step}, and its checkpoint cannot be relied on: {failure}; {saves.last_resort()}"
            ) from failure
        if self._is_main:
            there_is = f"the checkpoint is {saves.where(self._moment)}" if step or epoch else "nothing was to be saved"
            logger.info("stopped at step %d, in epoch %d: %s", step, epoch, there_is)
        for each in open_runs.open_saves():
            each.is_open = False
            each.was_stopped = True
        raise Stopped


def _is_saved_to(place: str) -> bool:
    return any(run.saves_to == place for run in open_runs.that_save())
