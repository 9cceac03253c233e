"""The runs of this process that may have unsaved steps: an `OpenRun` for each, and ``active_runs``.

A process runs one script, and its stop or end concerns all its runs. Each run is registered twice, because two
lifetimes meet: its ``TrainingRun`` lives as long as the trainer, from before the first step; its `OpenRun` lives
until the script ends under ``smddp.run``, even after the trainer, because the last save must become durable.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.run_state import Stateful
from smddp.checkpoint.save.observer import SaveObserver, Unobserved
from smddp.checkpoint.stores import Store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.opening import open_store
from smddp.checkpoint.stores.upload_monitor import UploadMonitor
from smddp.display_text import counted
from smddp.goodput import PartClock, Recorder
from smddp.goodput.attempt import End
from smddp.job import Job
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.own_loop import OwnLoop, begin_recorder
from smddp.training.progress import Progress

logger = logging.getLogger(__name__)


class OpenRun:
    """A run from its beginning to its script's end, which may outlive its trainer: its checkpoints and progress.

    As a context it ends the saves: after success once all are durable, with an exception after ten seconds at most.
    """

    def __init__(self, job: Job, checkpointer: Checkpointer, progress: Progress, clock: PartClock) -> None:
        self.location = job.checkpoint_location
        self.checkpointer = checkpointer
        checkpointer.observer = Unobserved()  # the loop measures by itself
        self.clock = clock
        self.ledger: Recorder | None = None
        """The record of this attempt, on rank 0, once the run owns its location."""
        self._cluster = job.cluster
        self._progress = progress
        self.is_open = True
        """Whether this run may still save. No other run of this process may save to the same location meanwhile."""
        self.was_stopped = False
        """Whether a stop ended the run, after a checkpoint."""

    @classmethod
    def begin(
        cls,
        job: Job,
        policy: CheckpointPolicy,
        progress: Progress,
        clock: PartClock,
        state: Mapping[str, Stateful],
        per_rank: Mapping[str, Stateful],
    ) -> OpenRun:
        """Open the job's checkpoint location; raise CheckpointError on every rank if it can't be written."""
        monitor = None
        if job.checkpoints_are_copied and job.cluster.is_main:
            assert job.checkpoint_s3_uri is not None
            source, target = DirectoryStore(job.checkpoint_dir), open_store(job.checkpoint_s3_uri)
            monitor = UploadMonitor(source, target, take_over=policy.sync == "upload")
        checkpointer = Checkpointer(
            job.checkpoint_location,
            state,
            per_rank=per_rank,
            keep=policy.keep,
            share=policy.writers(job),
            hyperparameters=json.loads(json.dumps(dict(job.hyperparameters)), parse_constant=str),  # no NaN in JSON
            tolerate_failures=policy.tolerate_failures,
            save_frozen=policy.save_frozen,
            listener=monitor,
        )
        job.claim_run_directory()  # a script without smddp.run has not done so
        checkpointer.open()
        checkpointer.check_writable()
        return cls(job, checkpointer, progress, clock)

    def begin_ledger(self) -> None:
        """Begin this attempt's record, which is kept beside the checkpoints; on rank 0."""
        if self._cluster.is_main:
            progress = self._progress
            self.ledger = begin_recorder(
                self.checkpointer, open_store(self.location), self.clock, steps=lambda: progress.steps
            )

    def saved(self) -> None:
        """Note in the ledger that a save of this step has begun."""
        self.clock.mark(self._progress.steps)
        if self.ledger is not None:
            self.ledger.saved()

    def end_ledger(self, end: End) -> None:
        """Write the last record of this attempt. Any thread may call it."""
        if self.ledger is not None:
            self.ledger.close(end)

    @property
    def unsaved_steps(self) -> int:
        """Steps taken since the newest save began."""
        return self._progress.steps - self.checkpointer.newest[0]

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_open = False
        if error is not None:
            self.checkpointer.__exit__(kind, error, traceback)
            self.end_ledger("failed")
            return
        end: End = "failed"
        try:
            with self.clock.within("checkpoint"):
                self._end_saves()
            end = "stopped" if self.was_stopped else "finished"
        finally:
            self.end_ledger(end)

    def _end_saves(self) -> None:
        with self.checkpointer:  # if `finish` raises or is interrupted, this waits ten seconds at most
            is_durable = self.checkpointer.finish()
            if not self._cluster.is_main:
                return
            if not is_durable:
                logger.error("training ends without its newest checkpoint: %s", self.checkpointer.last_resort())
            if (lost := self.unsaved_steps) > 0:
                logger.warning(
                    "the script ended with %s in no checkpoint: another run would take them again; call "
                    "trainer.save() after the loop, or after a break out of it",
                    counted(lost, "step"),
                )


class Run(Protocol):
    """A run that may take steps: ``TrainingRun``."""

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""

    @property
    def has_started(self) -> bool:
        """Whether the run has opened the location to save to."""

    @property
    def saves_to(self) -> str | None:
        """The location that the run saves to; None before its start, and after a stop or its end."""

    @property
    def is_durable(self) -> bool:
        """Whether every step is durable, so that none would be lost if the process ended now. Any thread may ask."""

    @property
    def is_held(self) -> bool:
        """Whether the model holds exchanged weights, and the trained weights are in no durable checkpoint."""

    @property
    def checkpoint_path(self) -> str | None:
        """The location of a checkpoint of the current step; None before the first step, which needs none."""

    def check_unsaved(self) -> None:
        """Raise an error if the current state may not be saved."""

    def make_durable(self, seconds: float) -> None:
        """Return once a checkpoint of the current step is durable."""


class ActiveRuns:
    """All runs of a process, and the contexts that end with its script."""

    def __init__(self) -> None:
        # Weak: a trainer that the script drops takes its run along. No lock: the main thread changes the sets, and the
        # thread of a late stop (`StopDeadline`) only copies them.
        self._trained: WeakSet[Run] = WeakSet()
        self._open: WeakSet[OpenRun] = WeakSet()
        self._own_loops: WeakSet[OwnLoop] = WeakSet()
        self._saves: ExitStack | None = None
        self._views: ExitStack | None = None

    @contextmanager
    def until_script_ends(self, saves: ExitStack, views: ExitStack) -> Iterator[None]:
        """Attach the saves and the view of every run that begins in this context to two stacks.

        Closing ``saves`` after success waits until the last checkpoints are durable; with an exception, ten seconds
        at most. After success, close ``views`` later: what a view tells of the end depends on the saves.
        """
        self._saves, self._views, Checkpointer.observe = saves, views, self._observe
        try:
            yield
        finally:
            self._saves = self._views = Checkpointer.observe = None

    def end_with_script(self, saves: AbstractContextManager[object]) -> bool:
        """Leave the context when the script ends under ``smddp.run``; return False outside of it."""
        return _enter(self._saves, saves)

    def end_after_saves(self, view: AbstractContextManager[object]) -> bool:
        """Leave the context when the script ends under ``smddp.run``, after a good end's saves; else return False."""
        return _enter(self._views, view)

    def add(self, run: Run) -> None:
        """Register a run that may take steps."""
        self._trained.add(run)

    def discard(self, run: Run) -> None:
        """Remove a run, because another run's checkpoints contain its state."""
        self._trained.discard(run)

    def add_open(self, run: OpenRun) -> None:
        """Register a run that has begun, and close a dropped trainer's run in the same location."""
        for dropped in self.open_runs():
            if dropped.location == run.location:
                dropped.is_open = False
        self._open.add(run)
        self.end_with_script(run)

    def open_runs(self) -> list[OpenRun]:
        """Return the runs that may still save, including the runs of dropped trainers."""
        return [run for run in self._open if run.is_open]

    def make_durable(self, seconds: float) -> None:
        """Make every saving run durable within these seconds together, but with at least a second each.

        Raise an error before the first save if a run may not be saved, and the error of the first save that fails.
        """
        deadline, runs = time.monotonic() + seconds, self.saving_runs()
        for run in runs:
            run.check_unsaved()
        for run in runs:
            run.make_durable(max(deadline - time.monotonic(), 1.0))

    def close_stopped(self) -> None:
        """Close the saves of all runs, because a stop has saved them."""
        for run in self.open_runs():
            run.is_open = False
            run.was_stopped = True

    def note_stop(self) -> None:
        """Note that the script ends by a stop: it heeded one itself, or ``Trainer`` did."""
        stopped: list[OpenRun | OwnLoop] = [*self.open_runs(), *self._own_loops]
        for run in stopped:
            run.was_stopped = True

    def begin_hang(self, seconds: float) -> None:
        """Count the last seconds, and what follows, as a hang in the ledgers of all runs. Any thread may call it."""
        for run in self._ledgers():
            run.clock.begin_hang(seconds)

    def end_hang(self, seconds: float) -> None:
        """End that hang: the rank moved so many seconds ago. Any thread may call it."""
        for run in self._ledgers():
            run.clock.end_hang(seconds)

    def end_ledgers(self, end: End) -> None:
        """Write the last records of all runs, because the process ends. Any thread may call it."""
        for run in self._ledgers():
            if end == "hang":
                run.clock.begin_hang()
            run.end_ledger(end)

    def _ledgers(self) -> list[OpenRun | OwnLoop]:
        return [*self._open, *self._own_loops]

    def _observe(self, checkpointer: Checkpointer, store: Store) -> SaveObserver:
        """Keep a ledger of the script's own loop around a Checkpointer, until the script ends."""
        if self._trained:
            return Unobserved()  # its trainer has a ledger
        loop = OwnLoop(checkpointer, store)
        self._own_loops.add(loop)
        self.end_with_script(loop)
        return loop

    def newest_saves(self) -> list[tuple[int, int]]:
        """Return step and epoch of each run's newest checkpoint, which it saved or resumed from; (0, 0) if it has none.

        Includes runs that a stop has ended.
        """
        return [run.checkpointer.newest for run in self._open]

    def saving_runs(self) -> list[Run]:
        """Return the runs that save, sorted by location: in the same order on all ranks."""
        return sorted((run for run in self._trained if run.saves_to is not None), key=lambda run: run.saves_to or "")

    def all_work_is_durable(self) -> bool:
        """Return whether runs took steps and all of these are durable. Any thread may ask."""
        runs = list(self._trained)
        return any(run.steps for run in runs) and all(run.is_durable for run in runs)

    def steps_in_no_checkpoint(self) -> int:
        """Return how many steps no begun save covers.

        These are lost when the process ends, even if all saves become durable.
        """
        unsaved = sum(run.steps for run in list(self._trained) if not run.has_started)
        return unsaved + sum(run.unsaved_steps for run in self.open_runs())


def _enter(stack: ExitStack | None, context: AbstractContextManager[object]) -> bool:
    if stack is not None:
        stack.enter_context(context)
    return stack is not None


active_runs = ActiveRuns()
