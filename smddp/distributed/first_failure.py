"""Tells every rank, through the store, which rank failed first, so that each host reports the cause.

1. When a rank fails, the others fail too, with a lost connection as their reason.
2. The first rank that fails for its own reason publishes its report, by one atomic compare-and-set.
3. A rank that only lost contact waits for that report, for a few seconds.
4. Every rank also polls for the report twice a second, in a thread with its own connection. So a rank learns of the
   failure even if it is stuck in a collective, or if rank 0 ends soon and takes the store with it.
5. The failed rank ends only after all ranks have read the report, or a few seconds later.
6. A rank that is killed publishes nothing. smddp's own launchers do it for the rank. Under any other launcher, a rank
   that lost contact looks which rank of its host has ended, and names it at once: mpirun kills the others in a second.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.distributed.membership import Membership
from smddp.distributed.ranks import PeerFailedError
from smddp.distributed.store import NEWEST, PREFIX
from smddp.failure import CAUSE_SECONDS, LOST_CONTACT, HostMemory, hint
from smddp.process import process_tree
from smddp.process.exit_codes import REPORTS_VARIABLE

logger = logging.getLogger(__name__)

_REPORT = "first_failure/report"
_READERS = "first_failure/readers"
_ENDED = "first_failure/ended"
_LOG = "first_failure/log"
_SAID = "first_failure/said"
_PROCESS = "first_failure/process"
_POLL_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_HEED_SECONDS = 10.0
_READERS_SECONDS = 5.0  # a rank without a core for seconds must read the report before the store ends with rank 0

_NO_CAUSE = "Another rank ended without a word; was it killed, by a lack of memory perhaps?"
SAME_STEPS = (
    "All ranks must take the same number: end the training on all with trainer.finish_if, choose the loader's tail=, "
    'or leave steps out with on_nonfinite="skip"'
)
"""What to do if ranks take different numbers of steps."""
SAME_COLLECTIVES = (
    "All ranks must enter the same collectives in one order: look for a step, a save, a call of a sharded "
    "model, or another collective that only some ranks take"
)
"""What to do if ranks enter different collectives."""
_NO_ANSWER = (
    "Another rank did not come to a collective in time; is it slow, stopped or in another part of the script? "
    "smddp run --timeout, or SMDDP_TIMEOUT, are the seconds to wait."
)

_TIMED_OUT = re.compile(r"time[d]?[ -]?out", re.IGNORECASE)


def is_communication_error(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, says that another rank could not be reached."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, dist.DistError | PeerFailedError):
            return True
        if type(link) is RuntimeError and LOST_CONTACT.search(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def publish(store: Store, report: str) -> str:
    """Publish the failure of a rank that was killed, and return the first report of all.

    ``store`` is the job's store without a prefix.
    """
    job_store = PrefixStore(PREFIX, store)
    if not job_store.check([NEWEST]):
        return report  # no ranks have met yet
    meeting = PrefixStore(bytes(job_store.get(NEWEST)).decode(), job_store)
    return bytes(meeting.compare_set(_REPORT, "", report)).decode()


class FirstFailure:
    """One rank's part in finding the job's first failure.

    ``unheeded`` is called in the watching thread, with the report, if another rank failed and this one has not ended
    ten seconds later, because it waits for a rank that is gone, or computes for nothing. ``steps`` counts this rank's
    optimizer steps. ``memory`` has this host's counters of OOM kills from before.
    """

    def __init__(
        self,
        membership: Membership,
        unheeded: Callable[[str], None],
        *,
        steps: Callable[[], int],
        memory: HostMemory,
    ) -> None:
        self._steps, self._memory = steps, memory
        self._host = membership.cluster.host
        self._neighbours = _Neighbours(membership)
        self._rank, self._world_size = membership.cluster.rank, membership.cluster.world_size
        self._node_rank = membership.cluster.node_rank
        self._unheeded = unheeded
        self._report: str | None = None
        # Order: `_report` is written before `_known` is set, so a thread that sees the event sees the report. Two
        # threads use the store: no call waits in it, because the other thread could not use it meanwhile.
        self._known = threading.Event()
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._store = membership.connect(timedelta(seconds=30))
        if self._store is not None:
            self._neighbours.introduce(self._store)
            self._watcher = threading.Thread(target=self._watch, args=(self._store,), name="first-failure", daemon=True)
            self._watcher.start()

    def claim_log(self) -> bool:
        """Return whether this rank is the first to fail by itself, so that its report belongs in the log."""
        return self._claim(_LOG, by=str(self._rank))

    def claim_reason(self) -> bool:
        """Return whether this is the host's first call, so that its caller logs the job's first failure.

        Any thread may call it.
        """
        return self._claim(f"{_SAID}/{self._node_rank}", by=uuid.uuid4().hex)

    def _claim(self, key: str, *, by: str) -> bool:
        if self._store is None:
            return True
        try:
            return bytes(self._store.compare_set(key, "", by)) == by.encode()
        except RuntimeError:  # the store is gone with rank 0
            return True

    def publish(self, report: str) -> bool:
        """Publish why the job must end, and return whether no other rank has before. Any thread may call it."""
        if self._store is not None:
            with suppress(RuntimeError):  # the store is gone with rank 0: the next collective fails
                return bytes(self._store.compare_set(_REPORT, "", report)) == report.encode()
        return True

    def settle(self, report: str, *, lost_contact: bool) -> str:
        """Return the report that the job ends with: the first one of all ranks, or this rank's if none was earlier.

        With ``lost_contact``, this rank only lost another one, whose report is waited for, three seconds at most, and
        not at all if the rank has ended on this host without one.
        """
        if self._store is None:
            return report
        if lost_contact:
            gone = self._wait_for_cause(self._store)
            if self._known.is_set():
                assert self._report is not None
                return self._report
            if hint(report) is None:  # else the report explains itself
                cause = self._ended_well() or self._describe_gone(gone)
                cause = cause or (_NO_ANSWER if _TIMED_OUT.search(report) else _NO_CAUSE)
                report = f"{cause}\n{report}"
        try:
            return bytes(self._store.compare_set(_REPORT, "", report)).decode()
        except RuntimeError as error:
            logger.warning("the first failure could not be shared, the store is gone: %s", error)
            return report

    def await_readers(self) -> None:
        """Return once all ranks have read the report, or after `_READERS_SECONDS`: then this process may end."""
        if self._store is None:
            return
        deadline = time.monotonic() + _READERS_SECONDS
        try:
            while self._store.add(_READERS, 0) < self._world_size and time.monotonic() < deadline:
                time.sleep(0.05)
        except RuntimeError:
            logger.info("the store is gone: nobody is left to read the report")

    def close(self, *, code: int | None = None) -> None:
        """Stop watching, so that no thread is inside the store when Python ends, which would abort the process.

        ``code`` is the exit code of a good end; ranks that still wait for this one learn it, and fail.
        """
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(CAUSE_SECONDS)
        if self._store is not None and code is not None:
            with suppress(RuntimeError):  # the store is gone with rank 0
                self._store.compare_set(_ENDED, "", f"{self._rank} {code} {self._steps()}")

    def _wait_for_cause(self, store: Store) -> int | None:
        """Wait until the cause is known, and return a rank of this host that has ended; None if there is none."""
        deadline = time.monotonic() + CAUSE_SECONDS
        gone: int | None = None
        while not self._known.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            gone = self._neighbours.find_gone()
            if gone is not None and REPORTS_VARIABLE not in os.environ:
                try:
                    if not store.check([_REPORT]):
                        break
                except RuntimeError:
                    break  # the store is gone with rank 0
        return gone

    def _describe_gone(self, rank: int | None) -> str | None:
        if rank is None:
            return None
        how = self._memory.oom_kill()
        what = f"was killed, {how}" if how else "ended without a word, and the kernel has counted no OOM kill"
        return f"Rank {rank} of {self._world_size} on {self._host} {what}. What it printed last is in the log."

    def _ended_well(self) -> str | None:
        """Return an explanation if a rank ended well before this one lost contact; else None."""
        assert self._store is not None
        try:
            if not self._store.check([_ENDED]):
                return None
            ended, code, its_steps = bytes(self._store.get(_ENDED)).decode().split()
        except RuntimeError:
            return None
        own = self._steps()
        after = str(own)
        if own == int(its_steps):
            after += " as well: in a call that all ranks must make, such as trainer.save_model, or in its next step"
        return (
            f"Unequal steps: rank {ended} of {self._world_size} ended its script with exit code {code} after "
            f"{its_steps} optimizer steps, and rank {self._rank} waits for it after {after}. {SAME_STEPS}."
        )

    def _watch(self, store: Store) -> None:
        while not self._over.wait(_POLL_SECONDS):
            try:
                self._neighbours.meet(store)
                if not store.check([_REPORT]):
                    continue
                self._report = bytes(store.get(_REPORT)).decode()
            except RuntimeError:
                return  # the store is gone with rank 0: the next collective fails
            except Exception:  # else this rank would never learn of the failure
                logger.warning("the job's first failure could not be read", exc_info=True)
                continue
            self._known.set()  # first: once all have read the report, rank 0 may end, and the store with it
            with suppress(RuntimeError):
                store.add(_READERS, 1)
            if not self._over.wait(_HEED_SECONDS):
                self._unheeded(self._report)
            return


class _Neighbours:
    """The processes of the ranks of this host. They are read before the store may be gone with rank 0."""

    def __init__(self, membership: Membership) -> None:
        cluster = membership.cluster
        keys = [f"{_PROCESS}/{cluster.node_rank}/{local}" for local in range(cluster.local_world_size)]
        self._own, self._keys = keys[cluster.local_rank], keys
        self._rank, self._namespace = cluster.rank, process_tree.namespace()
        self._processes: dict[int, tuple[int, int | None]] = {}
        """The process ID and the start time of each rank; empty until all have introduced themselves."""

    def introduce(self, store: Store) -> None:
        """Share this rank's process."""
        own = (self._rank, os.getpid(), process_tree.started(os.getpid()), self._namespace)
        store.set(self._own, json.dumps(own))

    def meet(self, store: Store) -> None:
        """Read the others' processes, if all are there."""
        if not self._processes and store.check(self._keys):
            found = [json.loads(bytes(value)) for value in store.multi_get(self._keys)]
            self._processes = {
                rank: (process, started) for rank, process, started, where in found if where == self._namespace
            }

    def find_gone(self) -> int | None:
        """Return the lowest rank whose process has ended; None if none has."""
        for rank, (process, started) in sorted(self._processes.items()):
            if process_tree.state(process) in ("", "Z", "X") or process_tree.started(process) != started:
                return rank
        return None
