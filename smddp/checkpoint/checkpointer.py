"""The Checkpointer: a training loop calls it to save its state, and to resume from the newest checkpoint.

It copies the state, lets the ranks write the copy in the background, and reports the outcome. The training loop decides
when to save.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeVar

from torch import nn

from smddp.checkpoint.format.manifest import Manifest, json_values
from smddp.checkpoint.parts.modules import ModulePart
from smddp.checkpoint.restore.restoring import restore_newest
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.run_state import Stateful, check_parts
from smddp.checkpoint.save.attempt import Moment, SaveReport, as_numbers
from smddp.checkpoint.save.background_saves import BackgroundSaves
from smddp.checkpoint.save.commit import Committer
from smddp.checkpoint.save.observer import SaveObserver, Unobserved
from smddp.checkpoint.save.rank_saver import RankSaver, SaveFailedError
from smddp.checkpoint.save.save_group import SaveGroup, check_alike, same_error
from smddp.checkpoint.save.snapshot import Snapshotter
from smddp.checkpoint.stores.opening import open_store
from smddp.checkpoint.stores.store import CommitListener, Store
from smddp.display_text import describe
from smddp.distributed import Ranks
from smddp.errors import CheckpointError
from smddp.whole_numbers import as_whole_number

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

_DEFAULT_RETENTION = Retention()
_CHECK_SECONDS = 5.0  # limit of a question whether the newest checkpoint has arrived
_ARRIVAL_SECONDS = 60.0  # limit for the wait for it in `close`


class Checkpointer:
    """Saves and restores a run: the parts of its state, and every rank's random number generators.

    `save` copies the state and returns; a background thread writes the copy. `check` raises the error of a failed save:
    call it at every step, it is cheap. The next `save`, `wait` or `close` raises the error, too. A save that fails on
    one rank fails on every rank.

    `open`, `load`, `check_writable`, `is_empty` and `lock_location` are collective. `save` and `warm_up` are not,
    unless a part of the state is sharded among the ranks; but every rank must save the same steps. Without `open`, the
    first of these calls opens.

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
        newest: Step and epoch of the newest save, even if in progress, or of the loaded checkpoint; (0, 0) before.
        observer: Receives this Checkpointer's calls. None until it opens; then ``observe`` makes one.
        observe: Makes the observer of each Checkpointer without one, on rank 0, under ``smddp.run``; None elsewhere.
    """

    observe: ClassVar[Callable[[Checkpointer, Store], SaveObserver] | None] = None

    def __init__(
        self,
        location: str | os.PathLike[str],
        state: Mapping[str, Stateful],
        *,
        per_rank: Mapping[str, Stateful] | None = None,
        keep: Retention = _DEFAULT_RETENTION,
        share: Literal["node", "all", "alone"] = "node",
        hyperparameters: Mapping[str, Any] | None = None,
        tolerate_failures: int = 0,
        save_frozen: bool = True,
        listener: CommitListener | None = None,
    ) -> None:
        """Set what to save, and where.

        Args:
            location: A directory, or ``s3://bucket/prefix``, for this run alone. The run owns it from the first load or
                save until `close` or the end of this process; other runs are refused. The first save creates it.
            state: The parts that are the same on all ranks, as under DistributedDataParallel, by name. A name becomes a
                file name; ``rng`` and ``ranks`` are reserved.
            per_rank: The parts that differ from rank to rank, by name; keep them small. A rank that did not exist when
                the checkpoint was saved keeps its own state: its load_state_dict is not called.
            keep: Which checkpoints stay, once a newer one is durable.
            share: Which ranks write the replicated state, each a share: ``"node"``, the ranks on rank 0's node;
                ``"all"``, every rank, which needs S3 or a file system that all nodes share. ``"alone"`` saves this
                process only, and nothing is collective.
            hyperparameters: The hyperparameters of the run, JSON values. Saved with each checkpoint, and compared by
                `load`.
            tolerate_failures: How many saves in a row may fail because of the disk, the network or the like. They are
                logged as errors; the next failure is raised.
            save_frozen: False saves only a fingerprint of each weight that is frozen and unchanged, in a module that
                trains other weights. At each start, the script must load the same frozen weights, and then call `open`
                or `load` before it trains; a resume with other values fails. Each save reads these weights once.
            listener: Follows each checkpoint, on rank 0, to a second place. A checkpoint that must be durable has to
                arrive there, too.

        Raises:
            ValueError: A name or the location is invalid, or the hyperparameters are not JSON values.
            TypeError: A part has no state_dict or no load_state_dict, or the listener is not a `CommitListener`.
        """
        self._state, self._per_rank = dict(state), dict(per_rank or {})
        check_parts(self._state, self._per_rank)
        if type(save_frozen) is not bool:
            raise ValueError(f"save_frozen is {save_frozen!r}: give True or False")
        if tolerate_failures < 0 or share not in ("node", "all", "alone"):
            raise ValueError(
                f"tolerate_failures is {tolerate_failures}, share is {share!r}: give 0 or more, and 'node', 'all' or "
                "'alone'"
            )
        if listener is not None and not isinstance(listener, CommitListener):
            raise TypeError(f"listener is {describe(listener)}: make it a smddp.checkpoint.CommitListener")
        self._parts: dict[str, Stateful] = {}
        self._store = open_store(location)
        self._keep = keep
        self._share = share
        self._save_frozen = save_frozen
        self._hyperparameters = json_values(hyperparameters or {})
        self._listener = listener
        self._saves = BackgroundSaves(tolerate_failures=tolerate_failures)
        self._rank_saver: RankSaver | None = None
        self._is_closed = False
        self._loaded_step = 0
        self.newest: tuple[int, int] = (0, 0)
        self.observer: SaveObserver | None = None

    @property
    def last_report(self) -> SaveReport | None:
        """The report of the last durable save; None before the first."""
        return self._saves.last_report

    def open(self) -> None:
        """Agree with the other ranks on who writes; collective. Join the process group first.

        Raises:
            CheckpointError: The Checkpointer is closed, or a rank can't reach the others. Raised on every rank.
        """
        if self._is_closed:
            raise CheckpointError("this Checkpointer is closed: make another one")
        if self._rank_saver is None:
            ranks = Ranks(rank=0, world_size=1) if self._share == "alone" else Ranks.current()
            with same_error(ranks):
                group = SaveGroup.gather(ranks, "all" if self._share == "all" else "node")
                group.check_writers(self._state, share=self._share)
                check_alike(self._state, ranks, save_frozen=self._save_frozen)
                self._parts = {name: self._part(name, part, ranks) for name, part in self._state.items()}
            committer = Committer(
                self._store, keep=self._keep, hyperparameters=self._hyperparameters, listener=self._listener
            )
            snapshotter = Snapshotter(self._parts, self._per_rank, rank=ranks.rank, writers=group.writers)
            self._rank_saver = RankSaver(self._store, group, committer, snapshotter)
            self._saves.is_main = ranks.is_main
            if self.observer is None:
                observe = type(self).observe if ranks.is_main and self._share != "alone" else None
                self.observer = Unobserved() if observe is None else observe(self, self._store)

    def _part(self, name: str, part: Stateful, ranks: Ranks) -> Stateful:
        return ModulePart(name, part, ranks, save_frozen=self._save_frozen) if isinstance(part, nn.Module) else part

    def load(self, *, kept: Collection[str] = ()) -> Manifest | None:
        """Restore the newest valid checkpoint; collective.

        Args:
            kept: The names of parts that stay as they are.

        Returns:
            The manifest of the checkpoint; None if there is no checkpoint at all.

        Raises:
            CheckpointError: No checkpoint is valid, the newest valid one does not fit the state, another run owns the
                location, or a save failed in the background. Raised on every rank.
        """
        self._saves.await_turn()
        rank_saver = self._opened()
        ranks, committer, run = rank_saver.group.ranks, rank_saver.committer, rank_saver.group.run
        with same_error(ranks):
            ranks.on_main(lambda: committer.lock_location(run, make=False))
            manifest = restore_newest(
                self._store,
                ranks,
                state=self._parts,
                per_rank=self._per_rank,
                hyperparameters=self._hyperparameters,
                kept=kept,
            )
        committer.loaded = manifest
        if manifest is not None:
            self._loaded_step = manifest.step
            self.newest = (manifest.step, manifest.epoch)
        self._observed.loaded(self._loaded_step)
        return manifest

    def check_writable(self) -> None:
        """Verify that the location accepts checkpoints; collective.

        Raises:
            CheckpointError: The location cannot be written. Raised on every rank.
        """
        self._on_main(self._store.check_writable)

    def is_empty(self) -> bool:
        """Return whether the location has no checkpoint, not even a damaged one; collective.

        Raises:
            CheckpointError: The location cannot be read. Raised on every rank.
        """
        return self._on_main(lambda: not list(self._store.steps()))

    def lock_location(self) -> None:
        """Lock the location for this run; collective. `load` does so, too: call this in a run that loads nothing.

        Raises:
            CheckpointError: Another run owns the location, or it cannot be written. Raised on every rank.
        """
        saver = self._opened()
        self._on_main(lambda: saver.committer.lock_location(saver.group.run, make=True))

    def save(
        self,
        step: int,
        *,
        epoch: int = 0,
        position: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save the run as it is now. Returns once the state is copied; `wait` returns once the checkpoint is durable.

        Waits for a save in progress, and raises its error. Replaces a checkpoint of the same step if it is this run's,
        the one that this run loaded, or damaged.

        Args:
            step: Optimizer steps taken.
            epoch: The current epoch.
            position: Samples of the epoch consumed so far.
            metrics: Metrics to save with the checkpoint.

        Raises:
            ValueError: A number is out of range, or a metric is not a number. The save then fails on every rank.
            CheckpointError: The state cannot be saved, or the previous save failed. Earlier checkpoints are intact.
        """
        moment = Moment(  # raises alike on every rank
            step=as_whole_number("step", step),
            epoch=as_whole_number("epoch", epoch),
            position=None if position is None else as_whole_number("position", position),
        )
        try:
            numbers = {name: float(value) for name, value in as_numbers(metrics or {}).items()}
        except ValueError as error:  # perhaps on this rank alone: the save fails on all of them
            self.save_moment(moment, failure=error)
        else:
            self.save_moment(replace(moment, metrics=numbers))

    def save_moment(self, moment: Moment, *, failure: Exception | None = None) -> None:
        """Save the run at this moment, like `save`. With a failure, fail on every rank, and raise the failure here."""
        if self._rank_saver is None and not self._save_frozen:
            raise CheckpointError(
                "save_frozen=False compares the frozen weights with those at the start: call load() or open() before "
                "training"
            )
        saver = self._opened()
        with self._observed.stall():
            self._saves.save(saver, moment, failure)
        self.newest = moment.boundary
        self._observed.saved(moment.step)

    def check(self) -> None:
        """Raise the error of a save that failed in the background, if any. Call it at every step.

        Raises:
            CheckpointError: The save failed. Earlier checkpoints are intact.
        """
        self._saves.check()

    @property
    def busy(self) -> bool:
        """Whether a save or `warm_up` is in progress, so that the next save would wait."""
        return self._saves.are_busy

    def wait(self, timeout: float | None = None) -> SaveReport | None:
        """Wait until the last save is durable.

        Args:
            timeout: Seconds; None waits without a limit.

        Returns:
            The report of the save; None if it is not durable within the timeout, or nothing was saved yet.

        Raises:
            CheckpointError: The save failed, tolerated or not, unless the failure was raised or logged before.
        """
        with self._observed.stall():
            return self._saves.wait(timeout)

    def finish(self) -> bool:
        """Wait for the last save, such as at the end of training. Log its failure if it is tolerated.

        Returns:
            True if the save is durable, or nothing was saved. False if it failed, now or in an earlier `check`.

        Raises:
            CheckpointError: The save failed, and more saves in a row than are tolerated, or the cause is the state
                itself rather than the disk, the network or the like.
        """
        with self._observed.stall():
            return self._saves.finish()

    def make_durable(self, moment: Moment, *, seconds: float) -> None:
        """Return once a checkpoint of this moment is durable. Wait for a save in progress, and repeat a failed one.

        Step 0 of epoch 0 needs no checkpoint as long as nothing was saved.

        Args:
            moment: The present moment of training.
            seconds: The limit for the waits, without the snapshot and up to a second for the listener's answer.

        Raises:
            CheckpointError: The save failed, or was not durable in time, or has not reached the listener's place.
        """
        deadline = time.monotonic() + seconds
        late = CheckpointError(f"it was not durable after {seconds:.0f} s")
        try:
            is_durable = self._saves.count == 0 or self._is_saved_by(deadline)
        except SaveFailedError as error:
            if self._saves.is_main:  # of any cause: the next try saves a newer state, or is the last one
                logger.error("%s; it is repeated", error)
            is_durable = False
        if not (is_durable and self.newest == moment.boundary):
            if time.monotonic() >= deadline:
                raise late
            self.save_moment(moment)
            if not self._is_saved_by(deadline):
                raise late
        if not self._has_arrived(max(deadline - time.monotonic(), 1.0)):
            raise CheckpointError(f"it is on this machine only, and not in {self._listener}")

    def _is_saved_by(self, deadline: float) -> bool:
        """Wait for the last save, and return whether it is durable by then.

        A signal's handler ends no such wait: what stops the whole process group kills the DataLoader's workers, too.
        """
        while True:
            try:
                return self.wait(max(deadline - time.monotonic(), 0.0)) is not None
            except Exception as error:  # noqa: PERF203
                if isinstance(error, CheckpointError) or not self._saves.are_busy:
                    raise
                logger.warning("%s: %s; the save goes on", type(error).__name__, error)

    def is_durable(self, step: int) -> bool:
        """Return whether the newest durable checkpoint is of this step. Any thread may ask."""
        report = self.last_report
        if report is None:
            return step == self._loaded_step
        return step == report.step and self._has_arrived(_CHECK_SECONDS)

    @property
    def newest_saved(self) -> tuple[int, str] | None:
        """Step and location of the newest durable checkpoint that this process saved, or None. Any thread may ask."""
        report = self.last_report
        return None if report is None else (report.step, self.path(report.step))

    @property
    def is_newest_durable(self) -> bool:
        """Whether the newest save is durable, or none has begun; False while it is under way, or if it failed."""
        return self._saves.is_last_durable

    @property
    def loaded_step(self) -> int:
        """The step of the loaded checkpoint; 0 before."""
        return self._loaded_step

    def path(self, step: int) -> str:
        """Return a checkpoint's location for messages: in the listener's place if known, else in the store."""
        followed = None if self._listener is None else self._listener.path(step)
        return followed or self._store.path(step)

    def last_resort(self) -> str:
        """Say what the next attempt resumes from if the newest save failed."""
        step = self._loaded_step if self.last_report is None else self.last_report.step
        return f"the next attempt resumes from {self.path(step)}" if step else "the next attempt begins anew"

    def warm_up(self) -> None:
        """Allocate the memory for saving in the background, so that the first save is as fast as the others.

        Call it once, after the first optimizer step, when the optimizer has its state.
        """
        self._saves.prepare(self._opened().snapshotter.preparation)

    def close(self) -> None:
        """Wait for the save in progress, unlock the location, free the memory, and close the listener.

        Raises:
            CheckpointError: The save failed.
        """
        try:
            self.wait()
            self._has_arrived(_ARRIVAL_SECONDS)
        finally:
            self._unlock_location()
            self._rank_saver = None
            self._is_closed = True
            self._stop_following()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. On an exception, wait ten seconds at most for a save in progress, and raise no other error."""
        if error is None:
            self.close()
            return
        if self._saves.give_up():
            self._unlock_location()
        self._stop_following()

    def _has_arrived(self, seconds: float) -> bool:
        return self._listener is None or self._listener.settle(seconds)

    def _stop_following(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _unlock_location(self) -> None:
        """Unlock the location, unless the background thread still writes there."""
        if self._rank_saver is not None and not self.busy:
            self._rank_saver.committer.unlock_location()

    @property
    def _observed(self) -> SaveObserver:
        return Unobserved() if self.observer is None else self.observer

    def _on_main(self, action: Callable[[], _Found]) -> _Found:
        """Return what rank 0 finds, on every rank; collective. Raise its error on every rank."""
        ranks = self._opened().group.ranks
        with same_error(ranks):
            return ranks.on_main(action)

    def _opened(self) -> RankSaver:
        """Return this rank's saver. Open first if the caller did not: a ``with`` block may join the process group."""
        if self._rank_saver is None:
            self.open()
        assert self._rank_saver is not None
        return self._rank_saver
