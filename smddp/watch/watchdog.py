"""The watchdog's thread in each rank: it samples the rank, reads the others' samples, and logs one verdict.

1. Every second a rank shares its position through the store. A rank that has not moved for some seconds reads the
   others' positions.
2. A position whose beat stays the same means that the rank does not answer; a rank on the same host looks up the state
   of its process. If the store does not answer, rank 0 counts as silent where rank 0 serves the store. Where the
   launcher's agent serves it, no rank is judged until the agent answers.
3. Of the ranks that answer and have not moved for `Watch.after` seconds, the lowest judges: so there is one verdict.
   A job whose steps usually take longer has a longer bound.
4. Unless `on_hang="report"`, a verdict that holds for `Watch.patience` seconds becomes the job's first failure, and
   each rank that hangs ends by itself: see ``smddp.distributed.first_failure``. A rank that is the second to end the
   job logs nothing.
5. Between two samples the thread glances at the rank's phase. Rank 0 compares the ranks' glances twice a minute: see
   ``smddp.watch.pace``.
6. Ranks of one host compare each collective before it runs. Those of different hosts can't within microseconds: rank 0
   compares digests of all their collectives, twice a minute.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from smddp.distributed.membership import Membership
from smddp.failure import report_file
from smddp.process import process_tree
from smddp.watch.collective_log import CollectiveLog
from smddp.watch.exchange import JOIN_SECONDS, Exchange
from smddp.watch.fingerprints import Fingerprints
from smddp.watch.options import Watch
from smddp.watch.pace import Pace, to_json
from smddp.watch.position import Position, Sampler
from smddp.watch.verdict import Verdict, compare_digests, judge, silent_store

logger = logging.getLogger(__name__)

REPORT, EARLIER_REPORT = "hang.json", "earlier_hang.json"
"""The report's files in the job's output directory: of this attempt, and of the last one before it that hung."""
RANKS_REPORT = "ranks.json"
"""The file of the ranks' times in the job's output directory."""
_PERIOD = 1.0
_GLANCES = 5
"""Glances in a period."""
_COMPARE_SECONDS = 30.0
_FIRST_JUDGES = 8
"""Ranks that read all positions once they are idle; the others only once these have not judged in time. So what the
store sends grows with the number of ranks, not with its square."""
_LATE_PERIODS = 3.5
"""A rank whose position is older than so many periods is late."""
_GAP_SECONDS = 5.0
"""If this thread did not run for so long, the whole job may have been suspended: the ranks' clocks start anew."""
_FINAL = frozenset({"mismatched collective", "dead process"})
"""Kinds of hangs that nothing can end well."""
_MOST_FAILURES = 3
"""After so many failures without a good look between them the watchdog ends."""
_USUAL_TIMES = 5.0
"""A rank is not judged before so many times the pause that is usual in this job."""
_OBSERVED_SECONDS, _BUSY_SHARE = 2.0, 0.1
"""A silent rank is busy if one of its threads computes for more than this share of the time in which it does not wait
for a core, seen for these seconds. A thread that waits for Python's lock wakes up 200 times a second, and computes a
little each time. On a machine with too few cores both get little of one."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a rank knows of the others, in rank order."""

    answering: Sequence[Position]
    silent: Sequence[Position] = ()
    is_early: bool = False
    """Whether a rank is late, but not yet late enough to count as silent: its position is an old one."""


_HANG = "Hang"


def is_hang(report: str) -> bool:
    """Return whether a job's failure is a watchdog's verdict."""
    return report.startswith(f"{_HANG} (")


class Watchdog:
    """Watches one rank. On a verdict it calls `publish` with the reason, or `end` if the ranks can't be told.

    `publish` returns whether the reason is the job's first failure: otherwise another rank has logged its verdict.
    `hangs` is called again and again while a verdict is sure, with the seconds for which this rank has not moved, and
    `moves` once it is over, with the seconds since then; both on the rank that judges: rank 0, as long as it answers.
    """

    def __init__(
        self,
        watch: Watch,
        membership: Membership,
        *,
        steps: Callable[[], int],
        output_dir: Path,
        publish: Callable[[str], bool],
        end: Callable[[str], None],
        hangs: Callable[[float], None],
        moves: Callable[[float], None],
    ) -> None:
        self._watch = watch
        self._ends_hangs = watch.on_hang != "report"
        self._publish, self._end, self._hangs, self._moves = publish, end, hangs, moves
        self._file = output_dir / REPORT
        self._rank, self._world_size = membership.cluster.rank, membership.cluster.world_size
        self._period = min(_PERIOD, watch.after / 5)
        self._log = CollectiveLog()
        on_gpu = membership.device.type != "cpu"
        self._sampler = Sampler(membership.cluster, steps=steps, collectives=self._log, on_gpu=on_gpu)
        self._exchange = Exchange(membership, self._sampler.sample({}), period=self._period, after=watch.after)
        self._agent_serves_store, self._is_silent = membership.agent_serves_store, False
        # The beat of each rank, when it changed by this rank's clock (clocks of hosts are not compared), and whether it
        # changed at all: a position may be old when it is read first.
        self._beats: dict[int, tuple[int, float, bool]] = {}
        self._reads_since = time.monotonic()
        # The threads of each silent rank of this host, and when they were looked at first, by its process ID.
        self._seen: dict[int, tuple[dict[int, process_tree.Thread], float]] = {}
        self._pace = Pace()
        self._compared = time.monotonic()
        self._logged: set[tuple[str, tuple[int, ...], bool]] = set()
        self._hangs_since: float | None = None
        """Since when each verdict was sure; None if the last one was not."""
        self.verdict = ""
        """What this rank tells of one that hangs or is busy for long, while it lasts; else empty. For any thread."""
        self._ends_job = self._has_mismatch = False
        self._failures = 0
        """Failures since the last good look."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        with suppress(OSError):
            self._file.replace(self._file.with_name(EARLIER_REPORT))
        # Order: 1. create the fingerprints, 2. exchange the process IDs, 3. find the others' fingerprints by them.
        # With on_hang="report" the job may survive a hang, so no mismatched collective is blocked before it runs.
        fingerprints = Fingerprints.create() if self._world_size > 1 and self._ends_hangs else None
        own = self._exchange.own
        self._exchange.start()
        if fingerprints is not None:
            here = {each.pid for each in self._exchange.positions if each.processes == own.processes}
            fingerprints.find_others(here - {own.pid})
        if not self._log.begin(fingerprints) and self._world_size > 1:
            logger.info("this PyTorch reports no collectives: a hang is judged by the ranks' lines alone")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Order: 1. this thread ends, 2. the exchange shares how the script has ended, and ends.
        self._over.set()
        self._thread.join(JOIN_SECONDS)
        self._log.end()
        self._exchange.own = self._sampler.sample({}, end="ended" if error is None else "failed")
        self._exchange.close()
        if self._rank == 0 and self._world_size > 1:
            self._report_pace()

    def _run(self) -> None:
        try:
            while self._failures < _MOST_FAILURES:
                if self._has_looked_until_over():
                    return
                self._over.wait(self._period)
            logger.error("the watchdog ends, for it has failed %d times; the job continues without it", _MOST_FAILURES)
            self.verdict = ""
            self._exchange.own = replace(self._exchange.own, phase="unwatched")
            self._end_hang(0.0)
        finally:
            self._log.release()  # who would find a held collective?

    def _has_looked_until_over(self) -> bool:
        """Look until the watch is over, and return True; False after a failure."""
        try:
            self._look_until_over()
        except Exception:
            self._failures += 1
            logger.warning("the watchdog has failed, and tries again", exc_info=True)
            return False
        return True

    def _look_until_over(self) -> None:
        last = time.monotonic()
        glances = 0
        while not self._over.wait(self._period / _GLANCES) and not self._exchange.is_lost:
            glances += 1
            self._sampler.glance(with_line=glances % _GLANCES == 0)
            if glances % _GLANCES:
                continue
            now = time.monotonic()
            if now - last > _GAP_SECONDS + self._period:
                self._sampler.restart()
                self._beats.clear()
            last = now
            self._look()
            self._failures = 0

    def _look(self) -> None:
        own = self._sampler.sample({})
        after = self._bound([own])
        compares = self._rank == 0 and self._world_size > 1 and time.monotonic() > self._compared + _COMPARE_SECONDS
        self._exchange.reads = compares or own.idle > (2 * self._period if self._rank < _FIRST_JUDGES else 2 * after)
        heard = self._hear(own)
        here = [each for each in heard.silent if each.processes == own.processes]
        self._seen = {each.pid: self._seen[each.pid] for each in here if each.pid in self._seen}
        own = replace(own, neighbours={each.rank: self._state(each) for each in here})
        if not self._over.is_set():  # else `__exit__` may have shared the end already
            self._exchange.own = own
        if own.idle < after:
            self._logged.clear()
            self.verdict = ""
            self._end_hang(own.idle)
            if compares:
                self._compare()
            return
        answering = [own if each.rank == own.rank else each for each in heard.answering]
        was_silent, self._is_silent = self._is_silent, self._agent_serves_store and self._exchange.silence >= after
        if self._is_silent:
            if self._rank < _FIRST_JUDGES:
                self._tell(silent_store(self._exchange.silence, after), own, answering)
            return
        if was_silent:
            self._tell(None, own, [])
        if heard.is_early or any("unknown" in each.neighbours.values() for each in answering):
            return
        after = self._bound([*answering, *heard.silent])
        judges = [each for each in answering if each.idle >= after and each.phase != "ended"]
        if not judges or judges[0].rank != self._rank:
            self.verdict = ""
            self._end_hang(0.0)
            return
        self._tell(judge(answering, heard.silent, after), own, [*answering, *heard.silent])

    def _tell(self, verdict: Verdict | None, own: Position, positions: Sequence[Position]) -> None:
        self.verdict = "" if verdict is None else verdict.text
        if verdict is not None and verdict.is_sure:
            self._hangs(own.idle)
        else:
            self._end_hang(0.0)
        if verdict is not None:
            self._report(verdict, positions)

    def _end_hang(self, seconds: float) -> None:
        """Forget the verdict, if one was sure: the rank moved so many seconds ago."""
        if self._hangs_since is not None:
            self._hangs_since = None
            self._moves(seconds)

    def _bound(self, positions: Sequence[Position]) -> float:
        """Return the idle seconds after which these ranks are judged."""
        return max(self._watch.after, *(_USUAL_TIMES * each.usual for each in positions))

    def _compare(self) -> None:
        """Compare the ranks once the exchange has read their positions, two periods after it was asked to."""
        if time.monotonic() > self._compared + _COMPARE_SECONDS + 2 * self._period:
            self._compared = time.monotonic()
            mismatch = None if self._has_mismatch else compare_digests(self._exchange.positions)
            if mismatch is not None:
                self._report(mismatch, self._exchange.positions)
                self._has_mismatch = True  # from now on all digests differ
            if (slow := self._pace.compare(self._exchange.positions)) is not None:
                # In the form of a metric line, so that the job has it as a metric.
                logger.warning("slow: %s slow_rank=%d slow_share=%.2f", slow.text, slow.rank, slow.share)

    def _report_pace(self) -> None:
        positions = self._exchange.positions
        if self._pace.has_named:
            logger.info("the ranks' time by phase, in %%:\n%s", self._pace.table(positions))
        if any(each.glances for each in positions):
            _write(self._file.with_name(RANKS_REPORT), to_json(positions))

    def _hear(self, own: Position) -> _Heard:
        """Return what the exchange knows of the other ranks."""
        now, longest = time.monotonic(), self._exchange.silence
        if not self._exchange.reads:
            self._beats.clear()
            self._reads_since = now
            return _Heard([own], is_early=self._world_size > 1)
        others = [each for each in self._exchange.positions if each.rank != self._rank]
        if longest >= self._watch.after:
            self._beats.clear()  # until the store answers again, no beat can change
            self._reads_since = now
            silent = [
                each for each in others if each.rank == 0 and each.phase != "ended" and not self._agent_serves_store
            ]
            return _Heard([own], silent, is_early=not silent)
        answering, silent = [own], list[Position]()
        for each in others:
            is_last = each.phase in ("ended", "failed", "unwatched")
            beat, when, is_fresh = self._beats.get(each.rank, (each.beat, now, is_last))
            if beat != each.beat or is_last:
                when, is_fresh = now, True
            self._beats[each.rank] = each.beat, when, is_fresh
            if now - when >= self._watch.after:
                silent.append(each)
            else:
                answering.append(each)
                longest = max(longest, now - when) if is_fresh else math.inf
        answering.sort(key=lambda each: each.rank)
        bound = _LATE_PERIODS * self._period
        return _Heard(answering, silent, is_early=longest > bound or now - self._reads_since < bound)

    def _state(self, position: Position) -> str:
        """Return the state of a rank of this host that does not answer, as `Position.neighbours` has it."""
        state = process_tree.state(position.pid)
        if state in ("T", "t"):
            return "stopped"
        if state in ("", "Z", "X"):
            return "dead"
        now, found = time.monotonic(), process_tree.threads(position.pid)
        before, since = self._seen.setdefault(position.pid, (found, now))
        if any(each.state == "D" for each in found.values()):  # it reads or writes a disk
            self._seen[position.pid] = found, now  # observe it anew: it may have waited since the last look
            return "disk"
        if now - since < _OBSERVED_SECONDS:
            return "unknown"
        computes = any(_computes(each, before.get(name), now - since) for name, each in found.items())
        return "busy" if computes else "blocked"

    def _report(self, verdict: Verdict, positions: Sequence[Position]) -> None:
        if self._ends_job:
            return
        key = verdict.kind, tuple(verdict.ranks), verdict.is_sure
        is_new = key not in self._logged
        self._logged.add(key)
        if not verdict.is_sure:
            if is_new:
                logger.warning("slow: %s", verdict.text)
            return
        now = time.monotonic()
        self._hangs_since = now if self._hangs_since is None else self._hangs_since
        left = 0.0 if verdict.kind in _FINAL else self._hangs_since + self._watch.patience - now
        if self._ends_hangs and left <= 0:
            self._end_job(verdict, positions)
        elif is_new:
            what = "The ranks restart" if self._watch.on_hang == "restart" else "The job ends"
            ends = f" {what} in {left:.0f} s, unless it continues." if self._ends_hangs else ""
            logger.error("hang: %s%s", verdict.sentence, ends)
            self._record(verdict, positions)

    def _end_job(self, verdict: Verdict, positions: Sequence[Position]) -> None:
        reason = f"{_HANG} ({verdict.kind}): {verdict.text}"
        is_shared = self._world_size > 1 and self._exchange.silence < self._watch.after
        if not is_shared or self._publish(reason):
            logger.error("hang: %s Ending the job.", verdict.sentence)
            self._record(verdict, positions)
            if not is_shared:
                self._end(reason)
        self._ends_job = True  # last: the next look does again what has failed on the way

    def _record(self, verdict: Verdict, positions: Sequence[Position]) -> None:
        report = {"verdict": asdict(verdict), "positions": [asdict(each) for each in positions]}
        _write(self._file, json.dumps(report, indent=1))


def _write(file: Path, report: str) -> None:
    try:
        report_file.write(file, report)
    except OSError as error:
        logger.warning("%s could not be written: %s", file, error)


def _computes(thread: process_tree.Thread, before: process_tree.Thread | None, seconds: float) -> bool:
    """Return whether a thread computes whenever it gets a core."""
    computed, waited = (before.computed, before.waited) if before is not None else (0.0, 0.0)
    return thread.computed - computed > _BUSY_SHARE * (seconds - (thread.waited - waited))
