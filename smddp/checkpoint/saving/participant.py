"""One rank's part in a save, in its background thread.

Each rank writes its files and reports. Rank 0 waits for all reports, commits, and tells the others. So a failure
anywhere becomes a failure everywhere, and nobody waits for ever.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping

from xxhash import xxh3_128_hexdigest

from smddp.checkpoint.saving.attempt import Attempt
from smddp.checkpoint.saving.capture import Capture, Captured
from smddp.checkpoint.saving.commit import Committer
from smddp.checkpoint.saving.reports import Failure, Outcome, Report
from smddp.checkpoint.saving.team import Team
from smddp.checkpoint.saving.writer import write
from smddp.checkpoint.stores.store import Store
from smddp.distributed import PeerFailedError
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


class SaveFailedError(CheckpointError):
    """A checkpoint could not be saved, on any rank; earlier ones are as they were."""

    def __init__(self, message: str, *, environmental: bool) -> None:
        """Say it.

        Args:
            message: what went wrong, and where.
            environmental: the disk, the network or the like is the cause: the next save may succeed.
        """
        super().__init__(message)
        self.environmental = environmental


class Participant:
    """This rank in the saves of a run. All but `take` and `preparation` is called in a background thread.

    Attributes:
        team: All ranks.
        committer: What rank 0 commits with.
    """

    def __init__(self, store: Store, team: Team, committer: Committer, capture: Capture) -> None:
        """Take part.

        Args:
            store: where to save.
            team: all ranks.
            committer: what rank 0 commits with.
            capture: what takes this rank's state.
        """
        self.team = team
        self.committer = committer
        self._store = store
        self._rank = team.ranks.rank
        self._capture = capture

    def take(
        self, number: int, *, step: int, epoch: int, position: int | None, metrics: Mapping[str, float]
    ) -> Attempt:
        """Copy the state as it is now. If that fails, the attempt says so: `save` tells the other ranks.

        Args:
            number: how many attempts the run has made, with this one.
            step: see `Attempt`.
            epoch: see `Attempt`.
            position: see `Attempt`.
            metrics: see `Attempt`.
        """
        captured: Captured | None = None
        failure: CheckpointError | None = None
        try:
            captured = self._capture.take()
        except CheckpointError as error:
            failure = error
        return Attempt(
            run=self.team.run,
            number=number,
            step=step,
            epoch=epoch,
            position=position,
            metrics=metrics,
            captured=captured,
            failure=failure,
        )

    def preparation(self) -> Callable[[], None]:
        """Give what takes the memory for a state like the present one."""
        return self._capture.preparation()

    def save(self, attempt: Attempt, cancelled: threading.Event) -> int:
        """Do this rank's part.

        Args:
            attempt: what to save.
            cancelled: set when the process is about to end.

        Returns:
            The size of the checkpoint, in bytes, once it is durable.

        Raises:
            SaveFailedError: it failed, on every rank. On the one that has the cause it is raised from that.
            CheckpointError: the ranks lost contact.
        """
        return self._lead(attempt, cancelled) if self._rank == 0 else self._follow(attempt, cancelled)

    def tidy(self, attempt: Attempt) -> None:
        """Remove, on rank 0, what need not stay now that the attempt is a checkpoint."""
        if self._rank == 0:
            self.committer.tidy(attempt)

    def _follow(self, attempt: Attempt, cancelled: threading.Event) -> int:
        report, cause = Report(), None
        try:
            report = self._write(attempt)
        except Exception as error:  # not swallowed: rank 0 makes it everybody's
            report, cause = Report(failure=Failure.of(error, rank=self._rank)), error
        outcome = self.team.reports.send(attempt.number, report, cancelled)
        if outcome.failure is not None:
            raise self._error(attempt, outcome.failure) from self._cause(outcome.failure, cause)
        return outcome.size

    def _lead(self, attempt: Attempt, cancelled: threading.Event) -> int:
        size, failure, cause, standing = 0, None, None, None
        try:
            report = Report()
            try:
                standing = self.committer.standing(attempt)
                report = self._write(attempt)
            except Exception as error:  # not swallowed: the others report first, so that nobody still writes
                report, cause = Report(failure=Failure.of(error, rank=0)), error
            reports = self.team.reports.collect(attempt.number, report, cancelled)
            failure = next((each.failure for each in reports if each.failure is not None), None)
            if failure is None:
                size = self.committer.commit(attempt, reports, replacing=standing)
        except Exception as error:  # not swallowed: raised below, once the others know
            failure, cause = Failure.of(error, rank=0), error
        if failure is not None:
            self.committer.discard(attempt)
        self._announce(attempt, Outcome(size=size, failure=failure), cancelled)
        if failure is not None:
            raise self._error(attempt, failure) from self._cause(failure, cause)
        return size

    def _write(self, attempt: Attempt) -> Report:
        if attempt.failure is not None:
            raise attempt.failure
        assert attempt.captured is not None
        self._capture.await_copies()
        return Report(
            files=write(self._store, attempt.step, attempt.directory, attempt.captured.files),
            fingerprint=_fingerprint(attempt.captured.sizes),
            skeleton=attempt.captured.own_skeleton,
            tensors=bytes(attempt.captured.own_file.content),
        )

    def _announce(self, attempt: Attempt, outcome: Outcome, cancelled: threading.Event) -> None:
        try:
            self.team.reports.announce(attempt.number, outcome, cancelled)
        except CheckpointError as error:
            logger.warning("the other ranks may not know what became of the checkpoint: %s", error)

    def _error(self, attempt: Attempt, failure: Failure) -> SaveFailedError:
        where = f"rank {failure.rank}: " if self.team.ranks.world_size > 1 else ""
        return SaveFailedError(
            f"could not save the checkpoint {self._store.path(attempt.step)}: {where}{failure.text}; earlier ones are "
            "as they were",
            environmental=failure.environmental,
        )

    def _cause(self, failure: Failure, cause: Exception | None) -> Exception | None:
        return cause if failure.rank == self._rank else PeerFailedError(f"rank {failure.rank} failed")


def _fingerprint(sizes: Mapping[str, Mapping[str, int]]) -> str:
    return xxh3_128_hexdigest(json.dumps(sizes, sort_keys=True).encode()) if sizes else ""
