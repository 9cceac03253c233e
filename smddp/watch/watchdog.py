"""The watchdog's thread in each rank: it samples the rank, reads the others' samples, and tells one verdict.

1. Every second a rank shares its position with the others, through the store.
2. A position whose beat stays the same means that the rank does not answer; a rank on the same host looks up the state
   of its process. A store that does not answer means that rank 0, which serves it, does not.
3. Of the ranks that answer and have not moved for `Watch.after` seconds, the lowest judges: so there is one verdict.
4. With `on_hang="fail"` the verdict becomes the job's first failure, and each rank that hangs ends by itself: see
   ``smddp.distributed.first_failure``.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from smddp.distributed.membership import Membership
from smddp.process import process_tree
from smddp.watch.collective_log import CollectiveLog
from smddp.watch.exchange import Exchange
from smddp.watch.position import Position, Sampler
from smddp.watch.verdict import Verdict, judge
from smddp.watch.watch import Watch

logger = logging.getLogger(__name__)

REPORT = "hang.json"
"""The report's file in the job's output directory."""
_PERIOD = 1.0
_LATE_PERIODS = 2.5
"""A rank whose position is older than so many periods is late."""
_GAP_SECONDS = 5.0
"""If this thread did not run for so long, the whole job may have been suspended: the ranks' clocks start anew."""
_JOIN_SECONDS = 3.0
_OBSERVED_SECONDS, _BUSY_SHARE = 2.0, 0.1
"""A silent rank is busy if its process uses more of a core than this share, seen for these seconds. The threads that
wait for Python's lock wake up 200 times a second each, so that a blocked rank uses a little."""


class Watchdog:
    """Watches one rank. On a verdict it calls `publish` with the reason, or `end` if the ranks can't be told."""

    def __init__(
        self,
        watch: Watch,
        membership: Membership,
        *,
        steps: Callable[[], int],
        output_dir: Path,
        publish: Callable[[str], None],
        end: Callable[[str], None],
    ) -> None:
        self._watch = watch
        self._publish, self._end = publish, end
        self._file = output_dir / REPORT
        self._rank, self._world_size = membership.cluster.rank, membership.cluster.world_size
        self._period = min(_PERIOD, watch.after / 5)
        self._silence = max(5 * self._period, watch.after / 3)
        self._log = CollectiveLog()
        self._sampler = Sampler(membership.cluster, steps=steps, collectives=self._log)
        self._exchange = Exchange(
            membership.connect(timedelta(seconds=30)),
            rank=self._rank,
            world_size=self._world_size,
            period=self._period,
        )
        # The beat of each rank, and when it changed by this rank's clock: clocks of hosts are not compared.
        self._heard: dict[int, tuple[int, float]] = {}
        self._neighbours: dict[str, str] = {}
        # The CPU seconds of each silent rank of this host, and when they were read first, by its process ID.
        self._used: dict[int, tuple[float, float]] = {}
        self._told: set[tuple[str, tuple[int, ...], bool]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if not self._log.begin() and self._world_size > 1:
            logger.info("this PyTorch has no hooks for collectives: a hang is told by the ranks' lines alone")
        self._exchange.start(self._sampler.sample({}))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Order: 1. this thread ends, 2. the exchange tells the other ranks that the script has ended well, and ends.
        self._over.set()
        self._thread.join(_JOIN_SECONDS)
        self._log.end()
        if error is None:
            self._exchange.own = self._sampler.sample({}, ended=True)
        self._exchange.close()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(self._period):
            now = time.monotonic()
            if now - last > _GAP_SECONDS + self._period:
                self._sampler.restart()
                self._heard.clear()
            last = now
            self._look()

    def _look(self) -> None:
        own = self._exchange.own = self._sampler.sample(self._neighbours)
        answering, silent, unsure = self._hear(own)
        here = [each for each in silent if each.host == own.host]
        self._used = {each.pid: self._used[each.pid] for each in here if each.pid in self._used}
        self._neighbours = {str(each.rank): self._state(each) for each in here}
        own = replace(own, neighbours=self._neighbours)
        answering = [own if each.rank == own.rank else each for each in answering]
        if own.idle < self._watch.after or unsure or "unknown" in self._neighbours.values():
            return
        judges = [each for each in answering if each.idle >= self._watch.after and each.phase != "ended"]
        if not judges or judges[0].rank != self._rank:
            return
        if (verdict := judge(answering, silent, self._watch.after)) is not None:
            self._tell(verdict, [*answering, *silent])

    def _hear(self, own: Position) -> tuple[list[Position], list[Position], bool]:
        """Return the positions of the ranks that answer, the last ones of the others, and whether it is too early.

        It is too early while a rank is late, but not yet late enough to count as silent: its position is an old one.
        """
        now = time.monotonic()
        others = [each for each in self._exchange.positions if each.rank != self._rank]
        if self._exchange.silence >= self._silence:  # rank 0 serves the store
            return [own], [each for each in others if each.rank == 0], False
        answering, silent = [own], list[Position]()
        longest = self._exchange.silence
        for each in others:
            beat, when = self._heard.get(each.rank, (None, now))
            when = now if beat != each.beat or each.phase == "ended" else when
            self._heard[each.rank] = each.beat, when
            if now - when >= self._silence:
                silent.append(each)
            else:
                answering.append(each)
                longest = max(longest, now - when)
        return sorted(answering, key=lambda each: each.rank), silent, longest > _LATE_PERIODS * self._period

    def _state(self, position: Position) -> str:
        """Return the state of a rank of this host that does not answer: stopped, dead, busy, blocked or unknown."""
        state = process_tree.state(position.pid)
        if state in ("T", "t"):
            return "stopped"
        if state in ("", "Z", "X"):
            return "dead"
        used, now = process_tree.usage(position.pid), time.monotonic()
        seconds = 0.0 if used is None else used[0]
        before, since = self._used.setdefault(position.pid, (seconds, now))
        if now - since < _OBSERVED_SECONDS:
            return "unknown"
        return "busy" if seconds - before > _BUSY_SHARE * (now - since) else "blocked"

    def _tell(self, verdict: Verdict, positions: Sequence[Position]) -> None:
        key = verdict.kind, tuple(verdict.ranks), verdict.is_sure
        if key in self._told:
            return
        self._told.add(key)
        self._record(verdict, positions)
        if not verdict.is_sure:
            logger.warning("slow: %s", verdict.text)
            return
        logger.error("hang: %s", verdict.text)
        if self._watch.on_hang == "fail":
            is_shared = self._world_size > 1 and self._exchange.silence < self._silence
            (self._publish if is_shared else self._end)(f"Hang ({verdict.kind}): {verdict.text}")

    def _record(self, verdict: Verdict, positions: Sequence[Position]) -> None:
        report = {"verdict": asdict(verdict), "positions": [asdict(each) for each in positions]}
        temporary = self._file.with_name(f".{REPORT}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(report, indent=1))
            temporary.replace(self._file)
        except OSError as error:
            logger.warning("the report of the hang could not be written to %s: %s", self._file, error)
