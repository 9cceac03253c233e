"""The checkpoints of one training run, as its policy wants them: in a place that can be written to, and ended well.

Saving goes on in the background (``smddp.checkpoint``). Here it is begun, and waited for where that must be: before a
stop, at the end of training, and when the process ends. When to save is ``smddp.training.run_checkpoints``'s.
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
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.open_runs import open_runs

logger = logging.getLogger(__name__)

_ARRIVAL_SECONDS = 60.0  # how long the end of training waits for the platform's copy
_CHECK_SECONDS = 5.0  # how long to look whether the platform's copy has arrived
_NEWS_SECONDS = 10.0  # how long a rank waits for word of another one's failure

Moment = tuple[int, int]
"""Optimizer steps taken, and the epoch: what tells one checkpoint of a run from another."""


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
        """Open the place.

        Args:
            job: Where it is.
            policy: What to do there.
            state: By name, what has a ``state_dict`` and is the same on all ranks.
            per_rank: Likewise, what each rank has its own of.
            steps: Tells how many optimizer steps were taken.

        Raises:
            CheckpointError: Nothing can be saved there; on every rank.
        """
        self.place = job.checkpoint_location
        """Where this run saves."""
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
        self._speaks = job.cluster.is_main
        self._steps = steps
        self._loaded_step = 0
        self._random_state: tuple[Moment, Any] | None = None
        self.is_open = True
        """Whether this run may still save: no other one of this process may then."""
        self.was_stopped = False
        """Whether the run ended because the job was told to stop, with a checkpoint."""
        open_runs.add_saves(self)

    @property
    def last_report(self) -> SaveReport | None:
        """What the last save took that is durable."""
        return self._checkpointer.last_report

    @property
    def newest(self) -> tuple[int, str] | None:
        """Step and place of the newest checkpoint that was saved here and is durable; any thread may ask."""
        report = self.last_report
        return None if report is None else (report.step, self._store.path(report.step))

    @property
    def first_step(self) -> int:
        """The step of the checkpoint that was loaded, or 0."""
        return self._loaded_step

    def load(self) -> bool:
        """Load the newest valid checkpoint into the state, if there is one.

        Raises:
            CheckpointError: None is valid, or it does not fit; on every rank.
        """
        manifest = self._checkpointer.load()
        if manifest is None:
            return False
        self._loaded_step = manifest.step
        return True

    def warm_up(self) -> None:
        """Take the memory for saving, in the background."""
        self._checkpointer.warm_up()

    def begin_anew(self) -> None:
        """Keep other runs out of a place in which nothing was saved yet; collective.

        Raises:
            ValueError: Something was.
            CheckpointError: Another run saves there already; on every rank.
        """
        self._checkpointer.take_place()
        if not self._checkpointer.is_empty():
            raise ValueError(
                f"{self.place} holds checkpoints, and this loop began without them: call trainer.resume() before its "
                "first forward pass, or take another run directory or checkpoint_s3_uri to begin anew"
            )

    def has(self, moment: Moment) -> bool:
        """Tell whether the newest save, which may be under way, is of this moment."""
        return moment == self._checkpointer.newest  # a beginning is as good as saved

    @property
    def unsaved_steps(self) -> int:
        """How many steps were taken since the last save that was begun."""
        return self._steps() - self._checkpointer.newest[0]

    def keep_random_state(self, moment: Moment) -> None:
        """Let all checkpoints of this moment have the random state that is now."""
        self._random_state = (moment, rng.capture())

    def save(self, moment: Moment, *, position: int | None, metrics: Mapping[str, float]) -> None:
        """Begin to save; wait for the save before.

        Raises:
            CheckpointError: More saves before failed than are tolerated, or the state cannot be saved.
        """
        step, epoch = moment
        with self._random_state_of(moment):
            self._checkpointer.save(step, epoch=epoch, position=position, metrics=metrics)

    def is_durable(self, step: int) -> bool:
        """Tell whether this step is durable, in S3 too where the platform copies it; any thread may ask."""
        report = self.last_report
        newest = self._loaded_step if report is None else report.step
        return newest == step and (
            report is None or self._upload_monitor is None or self._upload_monitor.settle(_CHECK_SECONDS)
        )

    def failure(self) -> Exception | None:
        """Return what a save failed with that is not tolerated, if one did."""
        try:
            self._checkpointer.check()
        except Exception as error:  # not swallowed: raised once all ranks know
            return error
        return None

    def await_failure(self) -> Exception:
        """Wait for what failed, where another rank knows of a failure already, and return it."""
        try:
            self._checkpointer.wait(_NEWS_SECONDS)
        except CheckpointError as error:
            return error
        return PeerFailedError("a checkpoint failed on another rank")

    def make_durable(
        self, moment: Moment, *, position: int | None, metrics: Mapping[str, float], seconds: float
    ) -> None:
        """Return once a checkpoint of this moment is durable; and in S3, where the platform copies it there.

        A save that is under way is waited for, and one that failed is made again.

        Raises:
            CheckpointError: It could not be saved, or not in so many seconds.
        """
        deadline = time.monotonic() + seconds
        step, epoch = moment
        with self._random_state_of(moment):
            self._checkpointer.make_durable(step, seconds=seconds, epoch=epoch, position=position, metrics=metrics)
        if self._upload_monitor is not None and not self._upload_monitor.settle(max(deadline - time.monotonic(), 1.0)):
            raise CheckpointError(f"it is on this machine only, and not in {self._store}")

    def where(self, moment: Moment) -> str:
        """Say where a checkpoint of this moment is."""
        return self._store.path(moment[0])

    def last_resort(self) -> str:
        """Say what the next attempt goes on from if the newest save failed."""
        step = self._loaded_step if self.last_report is None else self.last_report.step
        return f"the next attempt goes on from {self._store.path(step)}" if step else "the next attempt begins anew"

    def finish(self) -> None:
        """Wait until the newest save is durable, or say that it is not.

        Raises:
            CheckpointError: It failed, and no failure is tolerated.
        """
        if not self._checkpointer.finish() and self._speaks:
            logger.error("training ends without its newest checkpoint: %s", self.last_resort())

    def __enter__(self) -> RunSaves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End: after success once all is durable, with an exception once ten seconds are over."""
        self.is_open = False
        if error is None:
            self.finish()
            if self._speaks and (lost := self.unsaved_steps) > 0:
                logger.warning(
                    "the script ended with %d steps in no checkpoint: another run would take them again; call "
                    "trainer.save() after the loop, or after a break out of it",
                    lost,
                )
        self._checkpointer.__exit__(kind, error, traceback)
        if self._upload_monitor is not None and (
            error is not None or not self._upload_monitor.settle(_ARRIVAL_SECONDS)
        ):
            self._upload_monitor.close()  # says what did not arrive; once the newest did, nobody asks for those before

    @contextmanager
    def _random_state_of(self, moment: Moment) -> Iterator[None]:
        """Let what is saved meanwhile have the random state that was kept for this moment, if one was."""
        if self._random_state is None or self._random_state[0] != moment:
            yield
            return
        own = rng.capture()
        rng.restore([self._random_state[1]], rank=0)
        try:
            yield
        finally:
            rng.restore([own], rank=0)
