"""Shares the ranks' positions through the job's store, in a separate thread.

If the store's process is stopped, a request never ends, and blocks this thread only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from smddp.distributed.membership import Membership
from smddp.watch.position import Position

logger = logging.getLogger(__name__)

JOIN_SECONDS = 3.0
"""Seconds to wait for a thread of the watchdog at the end."""
_LEAST_TIMEOUT = 60.0


class Exchange:
    """One rank's connection to the others' positions."""

    def __init__(self, membership: Membership, own: Position, *, period: float, after: float) -> None:
        rank, world_size = membership.cluster.rank, membership.cluster.world_size
        # Longer than `after`: a store that does not answer must not count as lost before.
        self._store = membership.connect(timedelta(seconds=max(_LEAST_TIMEOUT, 4 * after)))
        self._key = f"watch/{rank}"
        self._keys = [f"watch/{each}" for each in range(world_size)]
        self._period = period
        # Each attribute is one reference, so that a thread reads either the old value or the new one.
        self.own = own
        """This rank's position, to share in the next round."""
        self.reads = False
        """Whether to read the others' positions, too."""
        self.positions: Sequence[Position] = ()
        """The newest positions that were read; empty if there is only one rank."""
        self.answered = time.monotonic()
        """When the store last answered."""
        self.is_lost = False
        """Whether the store has refused a request: the process that serves it has ended."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog-exchange", daemon=True)

    def start(self) -> None:
        """Share the first position, wait for those of the others, and begin to share each period.

        So each rank knows the hosts and process IDs of all before the script begins. Raise RuntimeError if a rank is
        missing for the store's timeout.
        """
        if self._store is None:
            return
        self._store.set(self._key, self.own.to_json())
        self._store.wait(self._keys)
        self._ask(reads=True)
        self._thread.start()

    @property
    def silence(self) -> float:
        """Seconds without an answer of the store; 0 if there is only one rank."""
        return 0.0 if self._store is None else time.monotonic() - self.answered

    def close(self) -> None:
        """Share the last position, and stop, so that no thread is inside the store when Python ends: it would abort."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        assert self._store is not None
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._period)
            try:
                self._store.set(self._key, self.own.to_json())
                self._ask(reads=self.reads and not is_over)
            except RuntimeError as error:
                logger.info("the watchdog of this rank ends, for the store answers no more: %s", error)
                self.is_lost = True
                return
            except Exception:  # else this rank would seem to be silent
                logger.warning("this rank's position could not be shared", exc_info=True)

    def _ask(self, *, reads: bool) -> None:
        assert self._store is not None
        if reads:
            self.positions = [Position.from_json(each) for each in self._store.multi_get(self._keys)]
        else:
            self._store.check([self._key])  # a `set` alone is not answered
        self.answered = time.monotonic()
