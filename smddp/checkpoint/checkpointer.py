"""The Checkpointer: what a training loop calls to save everything that it needs to go on, and to go on.

It brings the others together: takes the state, lets the ranks write it in the background, tells how it went. When to
save is the loop's decision.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal

from smddp.checkpoint.changed_hyperparameters import json_values
from smddp.checkpoint.format.manifest import LARGEST_STEP, Manifest
from smddp.checkpoint.metric_values import as_numbers
from smddp.checkpoint.restore.on_all_ranks import restore_newest
from smddp.checkpoint.restore.restoring import Stateful, check_parts
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.save.background_task import BackgroundTask
from smddp.checkpoint.save.commit import CommitListener, Committer
from smddp.checkpoint.save.rank_saver import RankSaver, SaveFailedError
from smddp.checkpoint.save.save_group import SaveGroup
from smddp.checkpoint.save.save_request import SaveReport, SaveRequest
from smddp.checkpoint.save.snapshot import Snapshotter
from smddp.checkpoint.stores import open_store
from smddp.distributed import PeerFailedError, Ranks
from smddp.distributed.ranks import error_text
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_THE_LAST_THREE = Retention()
_FELT_SECONDS = 0.1  # shorter waiting is not worth a warning
_WARMING_UP = "the memory to save from"


class Checkpointer:
    """Saves and restores a run: the parts given here, and every rank's random numbers.

    `save` copies the state and returns; a background thread does the rest. What goes wrong there is raised by `check`,
    which costs nothing and is to be called at every step, and by the next `save`, `wait` or `close`. When a save fails,
    it fails on every rank.

    `load` is collective, and so is whichever is the first of `load`, `warm_up` and `save`; later calls of the last two
    are not, but every rank must save the same steps.

    Examples:
        >>> with Checkpointer(
        ...     job.checkpoint_location, {"model": model, "optimizer": optimizer, "sampler": sampler}
        ... ) as checkpointer:
        ...     resumed = checkpointer.load()
        ...     for step in range(resumed.step if resumed else 0, 1000):
        ...         checkpointer.check()
        ...         train()
        ...         if step % 100 == 99:
        ...             checkpointer.save(step + 1)

    Attributes:
        newest: Step and epoch of the newest save, which may be under way, or of what was loaded; (0, 0) before.
        last_report: What the last save took that is durable; None before the first.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        state: Mapping[str, Stateful],
        *,
        per_rank: Mapping[str, Stateful] | None = None,
        keep: Retention = _THE_LAST_THREE,
        share: Literal["node", "all", "alone"] = "node",
        hyperparameters: Mapping[str, Any] | None = None,
        tolerate_failures: int = 0,
        listener: CommitListener | None = None,
    ) -> None:
        """Say what to save, and where.

        Args:
            location: A directory, or ``s3://bucket/prefix``, of this run alone: from the first load or save to `close`,
                or the end of this process, another one is refused there. It is made with the first checkpoint.
            state: The parts of the run that are the same on all ranks, by name, as they are under
                DistributedDataParallel. A name becomes a file's name; ``rng`` and ``ranks`` are taken.
            per_rank: The parts that each rank has its own of: small ones. A rank that was not there when the checkpoint
                was saved keeps what it has: its load_state_dict is not called.
            keep: Which checkpoints stay, once a newer one is durable.
            share: Who writes what is the same on all ranks: the ranks of rank 0's node, each a share, or all. The
                latter needs a place that all nodes see, S3 or a shared file system. ``"alone"`` is this process and no
                other: nothing is collective then.
            hyperparameters: What the run was started with, JSON values; kept with each checkpoint, and compared when
                one is loaded.
            tolerate_failures: How many saves in a row may fail because of the disk, the network or the like, before
                one is an error; they are logged as errors.
            listener: Told of each checkpoint, on rank 0.

        Raises:
            ValueError: A name or the location is not possible, or the hyperparameters are not JSON values.
            TypeError: A part has no state_dict and load_state_dict.
        """
        self._state, self._per_rank = dict(state), dict(per_rank or {})
        check_parts(self._state, self._per_rank)
        if tolerate_failures < 0 or share not in ("node", "all", "alone"):
            raise ValueError(
                f"tolerate_failures is {tolerate_failures} and share {share!r}: 0 or more; 'node', 'all' or 'alone'"
            )
        self._store = open_store(location)
        self._keep = keep
        self._share = share
        self._hyperparameters = json_values(hyperparameters or {})
        self._tolerate_failures = tolerate_failures
        self._listener = listener
        self._background_task: BackgroundTask[SaveReport | None] = BackgroundTask()
        self._rank_saver: RankSaver | None = None
        self._saves = 0
        self._failures = 0
        self._durable = 0
        self._is_closed = False
        self.newest: tuple[int, int] = (0, 0)
        self.last_report: SaveReport | None = None

    def load(self) -> Manifest | None:
        """Go back to the newest valid checkpoint; collective.

        Returns:
            What was loaded; None if there is no checkpoint at all.

        Raises:
            CheckpointError: There are checkpoints but none is valid, or the valid one does not fit the state; or
                another run saves there; or a save failed in the background. On every rank.
        """
        self._await_turn()
        rank_saver = self._begin()
        ranks, committer, run = rank_saver.group.ranks, rank_saver.committer, rank_saver.group.run
        with _same_error(ranks):
            ranks.on_main(lambda: committer.take_place(run, make=False))
            manifest = restore_newest(
                *(self._store, ranks),
                state=self._state,
                per_rank=self._per_rank,
                hyperparameters=self._hyperparameters,
            )
        committer.loaded = manifest
        if manifest is not None:
            self.newest = (manifest.step, manifest.epoch)
        return manifest

    def check_writable(self) -> None:
        """See that checkpoints can be saved there; collective.

        Raises:
            CheckpointError: They cannot; on every rank.
        """
        ranks = self._begin().group.ranks
        with _same_error(ranks):
            ranks.on_main(self._store.check_writable)

    def is_empty(self) -> bool:
        """Tell whether there is no checkpoint yet, not even a damaged one; collective.

        Raises:
            CheckpointError: The place cannot be read; on every rank.
        """
        ranks = self._begin().group.ranks
        with _same_error(ranks):
            return ranks.on_main(lambda: not list(self._store.steps()))

    def take_place(self) -> None:
        """Keep other runs out of the place from now on, as `load` does; for a run that loads nothing; collective.

        Raises:
            CheckpointError: Another run saves there, or nothing can be written there; on every rank.
        """
        rank_saver = self._begin()
        ranks, committer, run = rank_saver.group.ranks, rank_saver.committer, rank_saver.group.run
        with _same_error(ranks):
            ranks.on_main(lambda: committer.take_place(run, make=True))

    def save(
        self,
        step: int,
        *,
        epoch: int = 0,
        position: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save the run as it is now; it is durable some time after this returns: `wait` tells when.

        A save that is still under way is waited for, and what it failed with is raised here. What is there of the same
        step by this run, or damaged, is replaced.

        Args:
            step: Optimizer steps taken.
            epoch: The epoch under way.
            position: Samples of the epoch that are consumed.
            metrics: What was measured, to be kept with it.

        Raises:
            ValueError: A number is not possible, or a metric is none.
            CheckpointError: Something in the state cannot be saved, or the save before failed. Earlier checkpoints are
                as they were.
        """
        if not 0 <= step <= LARGEST_STEP or epoch < 0 or (position is not None and position < 0):
            raise ValueError(
                f"step is {step}, epoch {epoch} and position {position}: steps go from 0 to 10**12 - 1, epochs and "
                "positions from 0"
            )
        numbers = {name: float(value) for name, value in as_numbers(metrics or {}).items()}
        rank_saver = self._begin()
        self._saves += 1
        failure: CheckpointError | None = None
        started = time.perf_counter()
        try:
            self._await_turn()
        except CheckpointError as error:  # raised below: the other ranks, who may know already, count on this save
            failure = error
        waited = time.perf_counter() - started
        started = time.perf_counter()
        request = SaveRequest.create(
            rank_saver.snapshotter,
            run=rank_saver.group.run,
            number=self._saves,
            step=int(step),
            epoch=int(epoch),
            position=position,
            metrics=numbers,
        )
        stalled = time.perf_counter() - started
        save = partial(self._save, rank_saver, request, started=started, stalled=stalled, waited=waited)
        self._background_task.submit(save, name=f"the checkpoint of step {step}")
        if failure := failure or request.failure:
            raise failure
        self.newest = (request.step, request.epoch)

    def check(self) -> None:
        """Raise what a save failed with in the background, if one did. To be called at every step.

        Raises:
            CheckpointError: It failed. Earlier checkpoints are as they were.
        """
        try:
            if self._background_task.result() is not None:
                self._failures = 0
        except SaveFailedError as error:
            self._failures += 1
            self._tolerate(
                *(error, self._failures <= self._tolerate_failures),
                f"training goes on, this was failure {self._failures} of {self._tolerate_failures} in a row that are "
                "tolerated",
            )

    @property
    def busy(self) -> bool:
        """Whether something is under way in the background: whether the next save would have to wait."""
        return self._background_task.under_way is not None

    def wait(self, timeout: float | None = None) -> SaveReport | None:
        """Wait until the last save is durable, and its outcome known to every rank.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Returns:
            What it took; None if it is not durable within that time, or nothing was saved yet.

        Raises:
            CheckpointError: It failed, tolerated or not, unless that was raised or logged before.
        """
        if self._background_task.wait(timeout) and self._background_task.result() is not None:
            self._failures = 0
        # Once it is durable, that is so even if older ones are not removed yet.
        return self.last_report if self._durable == self._saves else None

    def finish(self) -> bool:
        """Wait for the last save, at the end of training; where failures are tolerated, its failure is logged.

        Returns:
            Whether it is durable, or nothing was saved: also False for a failure that `check` has logged already.

        Raises:
            CheckpointError: It failed, and none is tolerated, or not because of the disk, the network or the like.
        """
        try:
            return self.wait() is not None or self._saves == 0
        except SaveFailedError as error:
            self._tolerate(error, self._tolerate_failures > 0, "training ends without it")
            return False

    def make_durable(
        self,
        step: int,
        *,
        seconds: float,
        epoch: int = 0,
        position: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Return once a checkpoint of this moment is durable; a save under way is waited for, a failed one made again.

        The beginning, step 0 of epoch 0, is as good as saved as long as nothing else was.

        Args:
            step: As for `save`.
            seconds: How long that may take.
            epoch: As for `save`.
            position: As for `save`.
            metrics: As for `save`.

        Raises:
            CheckpointError: It failed, or took longer.
        """
        deadline = time.monotonic() + seconds
        late = CheckpointError(f"it was not durable after {seconds:.0f} s")
        try:
            is_durable = self._saves == 0 or self.wait(seconds) is not None
        except SaveFailedError as error:
            if self._is_main:  # whatever its cause: this moment is another one, or the last try
                logger.error("%s; it is made again", error)
            is_durable = False
        if is_durable and self.newest == (step, epoch):
            return
        if time.monotonic() >= deadline:
            raise late
        self.save(step, epoch=epoch, position=position, metrics=metrics)
        if self.wait(max(deadline - time.monotonic(), 0.0)) is None:
            raise late

    def warm_up(self) -> None:
        """Take the memory for saving now, in the background: so the first save takes no longer than the others.

        To be called once after the first optimizer step, when the optimizer has its state.
        """
        rank_saver = self._begin()
        self._await_turn()
        self._background_task.submit(partial(_warm_up, rank_saver.snapshotter.preparation()), name=_WARMING_UP)

    def close(self) -> None:
        """Wait for the save under way to end, and give the memory back.

        Raises:
            CheckpointError: It failed.
        """
        try:
            self.wait()
        finally:
            self._end()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; when an exception is under way, give a save under way ten seconds and do not raise another."""
        if error is None:
            self.close()
        elif (name := self._background_task.give_up()) is not None:
            logger.warning("%s was given up", name)
        else:
            self._log_failure()
            self._leave_place()

    def _end(self) -> None:
        self._leave_place()
        self._rank_saver = None
        self._is_closed = True

    def _leave_place(self) -> None:
        """Let other runs have the place, unless something is still written there."""
        if self._rank_saver is not None and not self.busy:
            self._rank_saver.committer.release_place()

    def _log_failure(self) -> None:
        """Say what the last save failed with, where another exception is to be the one that is raised."""
        try:
            self._background_task.result()
        except Exception as failure:  # not swallowed: logged
            logger.error("%s", failure)

    def _tolerate(self, error: SaveFailedError, is_tolerated: bool, what_next: str) -> None:
        """Log what a save failed with, or raise it: what the state itself is the cause of is never tolerated."""
        if not (is_tolerated and error.environmental):
            raise error
        if self._is_main:
            logger.error("%s; %s", error, what_next)

    def _begin(self) -> RankSaver:
        """Find the other ranks, once; collective."""
        if self._is_closed:
            raise CheckpointError("this Checkpointer is closed: make another one")
        if self._rank_saver is None:
            ranks = Ranks(rank=0, world_size=1) if self._share == "alone" else Ranks.current()
            with _same_error(ranks):
                group = SaveGroup.gather(ranks, "all" if self._share == "all" else "node")
            committer = Committer(
                self._store, keep=self._keep, hyperparameters=self._hyperparameters, listener=self._listener
            )
            snapshotter = Snapshotter(self._state, self._per_rank, rank=group.ranks.rank, writers=group.writers)
            self._rank_saver = RankSaver(self._store, group, committer, snapshotter)
        return self._rank_saver

    def _await_turn(self) -> None:
        """Wait for what is under way in the background."""
        name, started = self._background_task.under_way, time.perf_counter()
        self._background_task.wait()
        waited = time.perf_counter() - started
        if waited > _FELT_SECONDS and name not in (None, _WARMING_UP) and self._is_main:
            logger.warning("waited %.1f s for %s: the interval is shorter than a save takes", waited, name)
        self.check()

    def _save(
        self,
        rank_saver: RankSaver,
        request: SaveRequest,
        cancelled: threading.Event,
        *,
        started: float,
        stalled: float,
        waited: float,
    ) -> SaveReport | None:
        """Save in the background."""
        try:
            size = rank_saver.save(request, cancelled)
            report = SaveReport(
                step=request.step,
                stall_seconds=stalled + rank_saver.gpu_stall_seconds,
                waited_seconds=waited,
                durable_seconds=time.perf_counter() - started,
                size=size,
            )
            self.last_report, self._durable = report, request.number
        except SaveFailedError:
            if request.failure is not None:
                return None  # `save` raised it already
            raise
        if self._is_main:
            logger.info(
                "saved %s: %.1f MB in %.2f s, for which training stood still %.3f s",
                *(self._store.path(report.step), size / 1e6, report.durable_seconds, report.stall_seconds + waited),
            )
        rank_saver.prune(request)
        return report

    @property
    def _is_main(self) -> bool:
        return self._rank_saver is not None and self._rank_saver.group.ranks.is_main


@contextmanager
def _same_error(ranks: Ranks) -> Iterator[None]:
    """Raise what failed on one rank as the same CheckpointError on every rank: the cause there, an echo elsewhere."""
    try:
        yield
    except Exception as error:
        if ranks.world_size == 1 and isinstance(error, CheckpointError):
            raise
        rank, text = ranks.rank, error_text(error)
        if isinstance(error, PeerFailedError) and error.rank is not None:
            rank, text = error.rank, error.told
        raise CheckpointError(text if ranks.world_size == 1 else f"rank {rank}: {text}") from error


def _warm_up(prepare: Callable[[], None], _cancelled: threading.Event) -> None:
    prepare()
