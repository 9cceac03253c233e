"""The goodput ledger of a loop around a Checkpointer, of a Trainer's or of a script's own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from torch.optim.optimizer import register_optimizer_step_post_hook

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.stores import Store
from smddp.distributed import Ranks
from smddp.goodput import PartClock, Recorder
from smddp.goodput.attempt import End, Loop


def begin_recorder(
    checkpointer: Checkpointer, store: Store, clock: PartClock, *, steps: Callable[[], int], loop: Loop = "trainer"
) -> Recorder:
    """Begin the record of this attempt in the store of a Checkpointer, which its thread does not keep alive."""
    resumed, saver = checkpointer.loaded_step, weakref.ref(checkpointer)

    def durable() -> int:
        newest = None if (known := saver()) is None else known.newest_saved
        return resumed if newest is None else newest[0]

    world_size = Ranks.current().world_size
    return Recorder(store, clock, world_size=world_size, resumed=resumed, steps=steps, durable=durable, loop=loop)


class OwnLoop:
    """The ledger of a script's own loop around a Checkpointer, on rank 0. It observes the Checkpointer.

    Such a loop shows only its first optimizer step and its saves. Calls of another thread than the one that made it are
    not counted.
    """

    def __init__(self, checkpointer: Checkpointer, store: Store) -> None:
        self.clock = PartClock()
        self.was_stopped = False
        self._checkpointer = weakref.ref(checkpointer)
        self._store = store
        self._step = 0
        self._recorder: Recorder | None = None
        self._thread = threading.get_ident()
        self._first_step = register_optimizer_step_post_hook(self._begin_loop)

    def stall(self) -> AbstractContextManager[None]:
        """Count the block as a checkpoint."""
        return self.clock.within("checkpoint") if threading.get_ident() == self._thread else nullcontext()

    def loaded(self, step: int) -> None:
        """Begin the record, at this step."""
        checkpointer = self._checkpointer()
        if self._recorder is None and checkpointer is not None and threading.get_ident() == self._thread:
            self._step = step
            self._recorder = begin_recorder(
                checkpointer, self._store, self.clock, steps=lambda: self._step, loop="script"
            )

    def saved(self, step: int) -> None:
        """Note that this step was saved."""
        if threading.get_ident() != self._thread:
            return
        self.loaded(0)
        self._begin_loop()
        self._step = step
        self.clock.mark(step)
        assert self._recorder is not None
        self._recorder.saved()

    def end_ledger(self, end: End) -> None:
        """Write the last record of this attempt. Any thread may call it."""
        if self._recorder is not None:
            self._recorder.close(end)

    def _begin_loop(self, *_: object) -> None:
        if self.clock.part == "start":
            self.clock.mark_start(self._step)
            self.clock.enter("other")
        self._first_step.remove()

    def __enter__(self) -> OwnLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._first_step.remove()
        self.end_ledger("failed" if error is not None else "stopped" if self.was_stopped else "finished")
