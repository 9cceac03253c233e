"""Shares the ranks' positions through the job's store, in a thread of its own.

Rank 0 serves the store. While its process is stopped, a request waits without end, and only this thread with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from torch.distributed.distributed_c10d import Store

from smddp.watch.position import Position

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 3.0


class Exchange:
    """One rank's connection to the others' positions."""

    def __init__(self, store: Store | None, *, rank: int, world_size: int, period: float) -> None:
        self._store = store
        self._key = f"watch/{rank}"
        self._keys = [f"watch/{each}" for each in range(world_size)]
        self._period = period
        # Each attribute is one reference that one thread assigns: `own` the watchdog's, the others this thread.
        self.own: Position | None = None
        """This rank's position, to share in the next round."""
        self.positions: Sequence[Position] = ()
        """The newest positions of all ranks; empty if there is only one."""
        self.answered = time.monotonic()
        """When the store last answered."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog-exchange", daemon=True)

    def start(self, own: Position) -> None:
        """Share the first position, wait for those of the others, and begin to share each period.

        So each rank knows the hosts and process IDs of all before the script begins. Raise RuntimeError if a rank is
        missing for the store's timeout.
        """
        if self._store is None:
            return
        self._store.set(self._key, own.to_json())
        self._store.wait(self._keys)
        self._read(self._store)
        self._thread.start()

    @property
    def silence(self) -> float:
        """Seconds without an answer of the store; 0 if there is only one rank."""
        return 0.0 if self._store is None else time.monotonic() - self.answered

    def close(self) -> None:
        """Share the last position, and stop, so that no thread is inside the store when Python ends: it would abort."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        assert self._store is not None
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._period)
            own = self.own
            try:
                if own is not None:
                    self._store.set(self._key, own.to_json())
                self._read(self._store)  # in each round: a rank knows where the others were before one fell silent
            except RuntimeError as error:  # the store is gone with rank 0: the next collective fails
                logger.debug("the exchange of positions ends: %s", error)
                return

    def _read(self, store: Store) -> None:
        self.positions = [Position.from_json(each) for each in store.multi_get(self._keys)]
        self.answered = time.monotonic()
