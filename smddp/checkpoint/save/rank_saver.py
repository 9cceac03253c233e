"""A save in the background threads of the ranks: a two-phase commit that rank 0 leads.

Notes on the protocol, in `RankSaver`:
  1. Rank 0 locks the location and reads the manifest that the step has now, for the compare and swap of the commit.
  2. Every rank writes its files durably and reports success or failure, even if its snapshot failed: no other rank
     waits for a report that never comes.
  3. Rank 0 waits for all reports, and commits only if all are successes. Otherwise it discards the attempt.
  4. Rank 0 announces the outcome only after that. A failure on one rank is a failure on every rank.
`save_group` bounds each wait for another rank. A rank that loses contact raises an error, even if rank 0 has committed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping

from xxhash import xxh3_128_hexdigest

from smddp.checkpoint.save.attempt import Moment, SaveReport, SaveRequest, write
from smddp.checkpoint.save.commit import Committer
from smddp.checkpoint.save.save_group import Failure, RankResult, SaveGroup, SaveResult
from smddp.checkpoint.save.snapshot import Snapshotter
from smddp.checkpoint.stores.store import Store
from smddp.distributed import PeerFailedError
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


class SaveFailedError(CheckpointError):
    """A save failed, on every rank. Earlier checkpoints are intact."""

    def __init__(self, message: str, *, environmental: bool) -> None:
        """Set `environmental` if the disk, the network or the like is the cause, so that the next save may succeed."""
        super().__init__(message)
        self.environmental = environmental


class RankSaver:
    """Copies this rank's part of each save in the training thread, and writes it in a background thread."""

    def __init__(self, store: Store, group: SaveGroup, committer: Committer, snapshotter: Snapshotter) -> None:
        """Write nothing yet. Only rank 0 uses `committer`."""
        self.group = group
        self.committer = committer
        self._store = store
        self._rank = group.ranks.rank
        self.snapshotter = snapshotter
        self._gpu_stall_seconds = 0.0  # of the last save's copies, beyond the time of the snapshot

    def request(
        self, number: int, moment: Moment, *, waited: float = 0.0, failure: Exception | None = None
    ) -> SaveRequest:
        """Copy the state, in the training thread. Keep the error of a failure: the other ranks need the report.

        After an earlier ``failure`` the state is copied too, because the copy of a sharded part is collective.
        """
        started = time.perf_counter()
        snapshot = None
        try:
            snapshot = self.snapshotter.take()
        except CheckpointError as error:
            failure = failure or error
        return SaveRequest(
            run=self.group.run,
            number=number,
            moment=moment,
            snapshot=snapshot,
            failure=failure,
            started=started,
            stall_seconds=time.perf_counter() - started,
            waited_seconds=waited,
        )

    def save(self, request: SaveRequest, cancelled: threading.Event) -> SaveReport:
        """Do this rank's part, and report it once the checkpoint is durable.

        Raise SaveFailedError on every rank if one rank fails, and CheckpointError if the ranks lose contact.
        """
        size = self._lead(request, cancelled) if self._rank == 0 else self._follow(request, cancelled)
        return SaveReport(
            step=request.step,
            stall_seconds=request.stall_seconds + self._gpu_stall_seconds,
            waited_seconds=request.waited_seconds,
            durable_seconds=time.perf_counter() - request.started,
            size=size,
        )

    def path(self, step: int) -> str:
        """Return the location of a checkpoint."""
        return self._store.path(step)

    def prune(self, request: SaveRequest) -> None:
        """Remove superseded checkpoints, on rank 0, after the commit."""
        if self._rank == 0:
            self.committer.prune(request)

    def _follow(self, request: SaveRequest, cancelled: threading.Event) -> int:
        result, cause = RankResult(), None
        try:
            result = self._write(request)
        except Exception as error:  # not swallowed: rank 0 sends it to every rank
            result, cause = RankResult(failure=Failure.of(error, rank=self._rank)), error
        save_result = self.group.results.send(request.number, result, cancelled)
        if save_result.failure is not None:
            raise self._error(request, save_result.failure) from self._cause(save_result.failure, cause)
        return save_result.size

    def _lead(self, request: SaveRequest, cancelled: threading.Event) -> int:
        size, failure, cause, replaced = 0, None, None, None
        try:
            result = RankResult()
            try:
                if request.failure is None:
                    self.committer.lock_location(request.run, make=True)
                replaced = self.committer.manifest_to_replace(request)
                result = self._write(request)
            except Exception as error:  # not swallowed: rank 0 collects all reports first, so that no rank still writes
                result, cause = RankResult(failure=Failure.of(error, rank=0)), error
            results = self.group.results.collect(request.number, result, cancelled)
            failure = next((each.failure for each in results if each.failure is not None), None)
            if failure is None:
                size = self.committer.commit(request, results, replacing=replaced)
        except Exception as error:  # not swallowed: raised below, after the announcement
            failure, cause = Failure.of(error, rank=0), error
        if failure is not None:
            self.committer.discard(request)
        self._announce(request, SaveResult(size=size, failure=failure), cancelled)
        if failure is not None:
            raise self._error(request, failure) from self._cause(failure, cause)
        return size

    def _write(self, request: SaveRequest) -> RankResult:
        if request.failure is not None:
            raise request.failure
        assert request.snapshot is not None
        self._gpu_stall_seconds = self.snapshotter.await_copies()
        return RankResult(
            files=write(self._store, request.step, request.directory, request.snapshot.files),
            fingerprint=_fingerprint(request.snapshot.sizes),
            skeleton=request.snapshot.own_skeleton,
            tensors=bytes(request.snapshot.own_file.content),
        )

    def _announce(self, request: SaveRequest, save_result: SaveResult, cancelled: threading.Event) -> None:
        try:
            self.group.results.announce(request.number, save_result, cancelled)
        except CheckpointError as error:
            logger.warning("the other ranks may not know what became of the checkpoint: %s", error)

    def _error(self, request: SaveRequest, failure: Failure) -> SaveFailedError:
        where = f"rank {failure.rank}: " if self.group.ranks.world_size > 1 else ""
        return SaveFailedError(
            f"could not save the checkpoint {self._store.path(request.step)}: {where}{failure.text}; earlier ones are "
            "as they were",
            environmental=failure.environmental,
        )

    def _cause(self, failure: Failure, cause: Exception | None) -> Exception | None:
        return cause if failure.rank == self._rank else PeerFailedError(f"rank {failure.rank} failed")


def _fingerprint(sizes: Mapping[str, Mapping[str, int]]) -> str:
    return xxh3_128_hexdigest(json.dumps(sizes, sort_keys=True).encode()) if sizes else ""
