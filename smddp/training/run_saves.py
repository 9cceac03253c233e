"""The saves of one training run, by its policy: open the location, save in the background, end in good order.

``smddp.checkpoint`` writes in the background. This file begins each save, and waits for it before a stop, at the end of
training, and when the process ends. `smddp.training.save_schedule` decides when to save.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from smddp.checkpoint import Checkpointer, SaveReport
from smddp.checkpoint.restore import rng
from smddp.checkpoint.restore.restoring import Stateful
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.upload_monitor import UploadMonitor
from smddp.distributed import PeerFailedError
from smddp.errors import CheckpointError
from smddp.job import Job
from smddp.training.active_runs import active_runs
from smddp.training.checkpoint_policy import CheckpointPolicy

logger = logging.getLogger(__name__)

_ARRIVAL_SECONDS = 60.0  # bound on the wait for the platform's copy at the end of training
_CHECK_SECONDS = 5.0  # bound on the check whether the platform's copy has arrived
_NEWS_SECONDS = 10.0  # bound on the wait for the error of another rank's failed save

Moment = tuple[int, int]
"""Optimizer steps taken, and the epoch. Two checkpoints of one run differ in it."""


class RunSaves:
    """The saves of one run; all ranks call its methods at the same points."""

    def __init__(
        self,
        job: Job,
        policy: CheckpointPolicy,
        state: Mapping[str, Stateful],
        per_rank: Mapping[str, Stateful],
        steps: Callable[[], int],
    ) -> None:
        """Open the job's checkpoint location; raise CheckpointError on every rank if it can't be written."""
        self.place = job.checkpoint_location
        """The location that this run saves to."""
        self._store = open_store(self.place)
        self._upload_monitor: UploadMonitor | None = None
        if job.checkpoints_are_copied and job.cluster.is_main:
            assert job.checkpoint_s3_uri is not None
            source, self._store = DirectoryStore(job.checkpoint_dir), open_store(job.checkpoint_s3_uri)
            self._upload_monitor = UploadMonitor(source, self._store, take_over=policy.sync == "upload")
        self._checkpointer = Checkpointer(
            job.checkpoint_location,
            state,
            per_rank=per_rank,
            keep=policy.keep,
            share=policy.writers(job),
            hyperparameters=json.loads(json.dumps(dict(job.hyperparameters)), parse_constant=str),  # no NaN in JSON
            tolerate_failures=policy.tolerate_failures,
            listener=self._upload_monitor,
        )
        self._checkpointer.check_writable()
        self._logs = job.cluster.is_main
        self._steps = steps
        self._loaded_step = 0
        self._random_state: tuple[Moment, Any] | None = None
        self.is_open = True
        """Whether this run may still save. No other run of this process may save to the same location meanwhile."""
        self.was_stopped = False
        """Whether a stop ended the run, after a checkpoint."""
        active_runs.add_saves(self)

    @property
    def last_report(self) -> SaveReport | None:
        """The report of the newest durable save, or None."""
        return self._checkpointer.last_report

    @property
    def newest(self) -> tuple[int, str] | None:
        """Step and path of the newest durable checkpoint that this process saved, or None. Any thread may ask."""
        report = self.last_report
        return None if report is None else (report.step, self._store.path(report.step))

    @property
    def first_step(self) -> int:
        """The step of the loaded checkpoint, or 0."""
        return self._loaded_step

    def load(self) -> bool:
        """Load the newest valid checkpoint; False if none exists.

        Raise CheckpointError on every rank if none is valid or fits.
        """
        manifest = self._checkpointer.load()
        if manifest is None:
            return False
        self._loaded_step = manifest.step
        return True

    def warm_up(self) -> None:
        """Allocate the memory for saves, in the background."""
        self._checkpointer.warm_up()

    def begin_anew(self) -> None:
        """Claim the location for a run without a checkpoint; collective.

        Raise ValueError if it contains checkpoints, and CheckpointError on every rank if another run owns it.
        """
        self._checkpointer.take_place()
        if not self._checkpointer.is_empty():
            raise ValueError(
                f"{self.place} holds checkpoints, and this loop began without them: call trainer.resume() before its "
                "first forward pass, or take another run directory or checkpoint_s3_uri to begin anew"
            )

    def has(self, moment: Moment) -> bool:
        """Return whether the newest save is of this moment; it may still be under way."""
        return moment == self._checkpointer.newest  # a save that has begun counts as saved

    @property
    def unsaved_steps(self) -> int:
        """Steps taken since the newest save began."""
        return self._steps() - self._checkpointer.newest[0]

    def keep_random_state(self, moment: Moment) -> None:
        """Use the current random state in all checkpoints of this moment."""
        self._random_state = (moment, rng.capture())

    def save(self, moment: Moment, *, position: int | None, metrics: Mapping[str, float]) -> None:
        """Wait for the previous save, and begin a new one.

        Raise CheckpointError if more saves failed than the policy tolerates, or the state can't be saved.
        """
        step, epoch = moment
        with self._random_state_of(moment):
            self._checkpointer.save(step, epoch=epoch, position=position, metrics=metrics)

    def is_durable(self, step: int) -> bool:
        """Return whether this step is durable, in S3 too if the platform copies it there. Any thread may ask."""
        report = self.last_report
        newest = self._loaded_step if report is None else report.step
        return newest == step and (
            report is None or self._upload_monitor is None or self._upload_monitor.settle(_CHECK_SECONDS)
        )

    def failure(self) -> Exception | None:
        """Return the error of a failed save that the policy no longer tolerates, or None."""
        try:
            self._checkpointer.check()
        except Exception as error:  # not swallowed: raised once all ranks know
            return error
        return None

    def await_failure(self) -> Exception:
        """Wait up to ten seconds for this rank's error, when another rank knows of a failure already, and return it."""
        try:
            self._checkpointer.wait(_NEWS_SECONDS)
        except CheckpointError as error:
            return error
        return PeerFailedError("a checkpoint failed on another rank")

    def make_durable(
        self, moment: Moment, *, position: int | None, metrics: Mapping[str, float], seconds: float
    ) -> None:
        """Return once a checkpoint of this moment is durable, in S3 too if the platform copies it there.

        Wait for a save under way, and repeat one that failed. Raise CheckpointError if it fails, or takes longer than
        so many seconds.
        """
        deadline = time.monotonic() + seconds
        step, epoch = moment
        with self._random_state_of(moment):
            self._checkpointer.make_durable(step, seconds=seconds, epoch=epoch, position=position, metrics=metrics)
        if self._upload_monitor is not None and not self._upload_monitor.settle(max(deadline - time.monotonic(), 1.0)):
            raise CheckpointError(f"it is on this machine only, and not in {self._store}")

    def where(self, moment: Moment) -> str:
        """Return the path of this moment's checkpoint."""
        return self._store.path(moment[0])

    def last_resort(self) -> str:
        """Say what the next attempt resumes from if the newest save failed."""
        step = self._loaded_step if self.last_report is None else self.last_report.step
        return f"the next attempt goes on from {self._store.path(step)}" if step else "the next attempt begins anew"

    def finish(self) -> None:
        """Wait until the newest save is durable, and log if it failed.

        Raise CheckpointError if the policy tolerates no failure.
        """
        if not self._checkpointer.finish() and self._logs:
            logger.error("training ends without its newest checkpoint: %s", self.last_resort())

    def __enter__(self) -> RunSaves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the saves: after success once all are durable, with an exception after ten seconds at most."""
        self.is_open = False
        if error is None:
            self.finish()
            if self._logs and (lost := self.unsaved_steps) > 0:
                logger.warning(
                    "the script ended with %d steps in no checkpoint: another run would take them again; call "
                    "trainer.save() after the loop, or after a break out of it",
                    lost,
                )
        self._checkpointer.__exit__(kind, error, traceback)
        if self._upload_monitor is not None and (
            error is not None or not self._upload_monitor.settle(_ARRIVAL_SECONDS)
        ):
            self._upload_monitor.close()  # logs late checkpoints; none matters once the newest has arrived

    @contextmanager
    def _random_state_of(self, moment: Moment) -> Iterator[None]:
        """Restore the random state that was kept for this moment, if any, while the context lasts."""
        if self._random_state is None or self._random_state[0] != moment:
            yield
            return
        own = rng.capture()
        rng.restore([self._random_state[1]], rank=0)
        try:
            yield
        finally:
            rng.restore([own], rank=0)
