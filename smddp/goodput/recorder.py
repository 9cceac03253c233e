"""What one attempt of a run spends its time on, measured and recorded while it runs.

The training thread only reads a clock where one part of its time ends and the next begins, twice a step. A thread of
rank 0 writes the record: at the beginning, after each save, each hundredth of the attempt's time, and at the end. A
failed write is logged once, and never ends the training.

Notes on the threads:
  1. The training thread alone changes the seconds and the marks; the others only copy them.
  2. A copy takes the part first, then the seconds, and gives the part all time that is in no part's seconds. So a copy
     always adds up, whichever moment of `PartClock.enter` it meets.
  3. The watchdog's thread only says from when to when the rank hung. That time of the part under way is ``hang``. What
     earlier parts took stays: a mark may have it already. Who enters a part has moved, so it ends the hang.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from smddp.checkpoint.stores import Store
from smddp.errors import CheckpointError
from smddp.goodput.account import Account, join_attempts
from smddp.goodput.attempt import (
    DIRECTORY,
    MEASURED,
    MOST_MARKS,
    REPEATED,
    Attempt,
    End,
    Loop,
    Mark,
    Seconds,
    read_attempts,
)
from smddp.process.rank_start import launched

logger = logging.getLogger(__name__)

_LEAST_PAUSE, _LONGEST_PAUSE, _PAUSE_SHARE = 0.5, 30.0, 0.01
"""Seconds from one sign of life to the next, and the share of the attempt's time so far."""
_LAST_SECONDS = 15.0
"""Bound on the wait for the last write after success, behind one that is under way: a busy disk needs seconds."""
_HURRIED_SECONDS = 5.0
"""The same bound after a stop or a failure, behind which SIGKILL is near."""


class PartClock:
    """Adds up the seconds of the parts of an attempt, in the thread that trains. It begins with the part ``start``."""

    def __init__(self) -> None:
        self.began = time.time()
        self.part = "start"
        """The part under way."""
        self.marks: list[Mark] = []
        self.undone = 0
        """Steps behind which the training went back to a checkpoint."""
        self._first = self._since = perf_counter()
        self._seconds = dict.fromkeys(MEASURED, 0.0)
        self._hangs: tuple[tuple[float, float], ...] = ()
        """When the rank began to hang, and when it moved again, within the part under way; never changed in place."""

    def enter(self, part: str) -> None:
        """End the part under way, and begin another."""
        now = perf_counter()
        if self._hangs:
            hung = self._hung(now)
            self._hangs = ()
            self._seconds[self.part] -= hung  # first: what is in no part's seconds, a copy gives the part under way
            self._seconds["hang"] += hung
        self._seconds[self.part] += now - self._since
        self._since = now
        self.part = part

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count the block as a part, and go on with the part under way.

        An error that leaves the block ends no part: what the script does next does.
        """
        before = self.part
        self.enter(part)
        try:
            yield
        except GeneratorExit:
            self.enter(before)
            raise
        self.enter(before)

    def mark_start(self, step: int) -> None:
        """Note what was spent before training began at the step; only the first call counts."""
        if not self.marks:
            self.mark(step)

    def mark(self, step: int) -> None:
        """Record the seconds spent until this step was saved, or until training began."""
        self.enter(self.part)  # a hang that follows takes only the time from now on
        marks = [mark for mark in self.marks if mark.step < step]
        if len(marks) >= MOST_MARKS:
            half = len(marks) // 2
            marks = marks[:1] + marks[1:half:2] + marks[half:]
        self.marks = [*marks, Mark(step=step, seconds=dict(self._seconds))]

    def go_back(self, step: int, *, undone: int) -> None:
        """Count what was spent since the step was saved as ``lost``: these steps, ``undone`` in number, were undone."""
        self.enter(self.part)
        self.marks = [mark for mark in self.marks if mark.step <= step]
        kept = self.marks[-1].seconds if self.marks else dict.fromkeys(MEASURED, 0.0)
        seconds = {part: kept[part] if part in REPEATED else each for part, each in self._seconds.items()}
        seconds["lost"] += sum(self._seconds.values()) - sum(seconds.values())
        self._seconds = seconds  # in one assignment: a copy of another thread has all of it or nothing
        self.undone += undone

    def seconds(self) -> Seconds:
        """Return the seconds of each part so far. Any thread may ask."""
        part = self.part
        seconds = dict(self._seconds)
        now = perf_counter()
        seconds[part] += max(now - self._first - sum(seconds.values()), 0.0)
        hung = self._hung(now)
        seconds[part] -= hung
        seconds["hang"] += hung
        return seconds

    def begin_hang(self, seconds: float = math.inf) -> None:
        """Count the last ``seconds`` of the part under way as ``hang``, and what follows. Any thread may call it.

        A hang that is under way keeps its beginning.
        """
        hangs = self._hangs
        last_end = hangs[-1][1] if hangs else -math.inf
        if last_end < math.inf:
            self._hangs = (*hangs, (max(perf_counter() - seconds, last_end), math.inf))

    def end_hang(self, seconds: float) -> None:
        """End a hang that is under way: the rank moved ``seconds`` ago. Any thread may call it."""
        if (hangs := self._hangs) and hangs[-1][1] == math.inf:
            self._hangs = (*hangs[:-1], (hangs[-1][0], perf_counter() - seconds))

    def _hung(self, now: float) -> float:
        """Return the seconds of the part under way in which the rank hung."""
        since = self._since
        return sum(max(min(ended, now) - max(began, since), 0.0) for began, ended in self._hangs)


class Recorder:
    """Writes the record of this attempt, on rank 0, until `close`, garbage collection or the end of the process.

    ``steps`` returns the steps taken, ``durable`` the newest step in a durable checkpoint.
    """

    def __init__(
        self,
        store: Store,
        clock: PartClock,
        *,
        world_size: int,
        resumed: int,
        steps: Callable[[], int],
        durable: Callable[[], int],
        loop: Loop = "trainer",
    ) -> None:
        self._writer = _Writer(
            store, clock, world_size=world_size, resumed=resumed, steps=steps, durable=durable, loop=loop
        )
        self._thread = threading.Thread(target=self._writer.run, name="goodput-ledger", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._writer.wake, is_over=True)
        self._finalizer.atexit = False

    def saved(self) -> None:
        """Write the record soon: it has a new mark."""
        self._writer.wake()

    def account(self) -> Account:
        """Return the account of the run up to now."""
        return join_attempts([*self._writer.earlier, self._writer.attempt()])

    def close(self, end: End = "") -> None:
        """Write the last record, and wait for it in bounded time. Does nothing the second time, or in a fork.

        Any thread may call it.
        """
        if self._finalizer.detach() is not None:
            self._writer.end = end
            self._writer.wake(is_over=True)
            self._thread.join(_LAST_SECONDS if end == "finished" else _HURRIED_SECONDS)


class _Writer:
    """The part of a `Recorder` that its thread needs: it keeps no reference to the `Recorder`."""

    def __init__(
        self,
        store: Store,
        clock: PartClock,
        *,
        world_size: int,
        resumed: int,
        steps: Callable[[], int],
        durable: Callable[[], int],
        loop: Loop,
    ) -> None:
        self.end: End = ""
        self.earlier: Sequence[Attempt] = ()
        self._store, self._clock, self._steps, self._durable = store, clock, steps, durable
        self._newest = resumed
        self._is_over = self._has_failed = False
        # Set after `_is_over` and `end` are: the thread that it wakes sees both.
        self._woken = threading.Event()
        self._first = Attempt(
            id=uuid.uuid4().hex[:12],
            host=socket.gethostname()[:256],
            world_size=world_size,
            launched=min(_claim_launch() or clock.began, clock.began),
            began=clock.began,
            seconds=clock.seconds(),
            resumed=resumed,
            step=resumed,
            durable=resumed,
            marks=(),
            pause=0.0,
            loop=loop,
        )

    def wake(self, *, is_over: bool = False) -> None:
        if is_over:  # by itself: `saved`, in another thread, must not take it back
            self._is_over = True
        self._woken.set()

    def attempt(self) -> Attempt:
        """Return the record as of now."""
        marks, seconds = self._clock.marks, self._clock.seconds()
        # A mark that was undone between the two lines has spent more.
        marks = [mark for mark in marks if all(mark.seconds[part] <= seconds[part] for part in MEASURED)]
        pause = min(max(_PAUSE_SHARE * sum(seconds.values()), _LEAST_PAUSE), _LONGEST_PAUSE)
        self._newest = max(self._newest, self._durable())
        return replace(
            self._first,
            seconds=seconds,
            step=max(self._steps(), marks[-1].step if marks else 0),
            durable=self._newest,
            undone=self._clock.undone,
            marks=marks,
            pause=pause,
            end=self.end,
        )

    def run(self) -> None:
        """Write the record again and again; the thread's program."""
        pause = self._write()  # first: an attempt that is killed in the next moment is in the ledger, too
        try:
            self.earlier, problems = self._read_earlier()
            for problem in problems:
                logger.info("%s", problem)
        except (CheckpointError, OSError) as error:
            self._warn(error)
        is_over = False
        while not is_over:
            self._woken.wait(pause)
            self._woken.clear()  # first: a `wake` after it is seen here, or ends the next wait
            is_over = self._is_over
            pause = self._write()

    def _read_earlier(self) -> tuple[Sequence[Attempt], list[str]]:
        attempts, problems = read_attempts(self._store)
        return [attempt for attempt in attempts if attempt.id != self._first.id], problems

    def _write(self) -> float:
        """Write the record, and return the seconds until it is due again."""
        record = self.attempt()
        try:
            self._store.write_beside(DIRECTORY, record.name, record.to_json())
        except (CheckpointError, OSError) as error:
            self._warn(error)
        return record.pause

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._has_failed or self._is_over else logging.WARNING
        self._has_failed = True
        logger.log(level, "the goodput ledger of this attempt is not up to date, training continues: %s", error)


_launch_is_counted = False


def _claim_launch() -> float | None:
    """Return when the launcher began, to the first recorder of a process; to others None."""
    global _launch_is_counted
    if _launch_is_counted:
        return None
    _launch_is_counted = True
    return launched(os.environ)
