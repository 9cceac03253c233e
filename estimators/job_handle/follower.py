"""How a job is followed: it is looked at again and again until it has ended, and what each look shows is yielded."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from estimators import api_retries
from estimators.job_handle.events import JobEvent, StatusChange
from estimators.job_handle.metric_reader import MetricReader
from estimators.job_handle.outcome import ENDED

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.log_reader import LogReader

_SHORTEST_POLL, _LONGEST_POLL, _LONGEST_SETTLING = 0.25, 5.0, 3.0
"""Seconds. How often a job is looked at grows with the time it is followed; how long its last lines, which CloudWatch
shows later than the job's end, are waited for grows with the time that the job has taken."""
_ALL_SHOWN = 300.0
"""Seconds after its end a job has no line that CloudWatch does not show, with room for a clock that is wrong."""


class Follower:
    """Follows one job from its beginning to its end. Nothing is asked before the first event is."""

    def __init__(
        self,
        describe: Callable[[], DescribeTrainingJobResponseTypeDef],
        open_log: Callable[[Callable[[], bool]], LogReader] | None,
        *,
        with_values: bool,
    ) -> None:
        """Follow a job.

        Args:
            describe: Asks the API about the job.
            open_log: Gives a reader at the beginning of the job's log, which asks what it is given whether it is
                cancelled; None if its lines are not wanted.
            with_values: Whether the values of metrics in the lines are wanted.
        """
        self._describe = describe
        self._open_log = open_log
        self._with_values = with_values

    def events(self) -> Iterator[JobEvent]:
        """Yield the job's changes of status, its lines and the values in them as they come, until its end."""
        for event in self.looks(lambda: False):
            if isinstance(event, float):
                time.sleep(event)
            else:
                yield event

    async def events_async(self) -> AsyncIterator[JobEvent]:
        """Yield the same; other threads ask the API, and no thread sleeps: who is cancelled ends within a request."""
        import asyncio

        cancelled = threading.Event()
        looks = self.looks(cancelled.is_set)
        try:
            while (event := await asyncio.to_thread(next, looks, None)) is not None:
                if isinstance(event, float):
                    await asyncio.sleep(event)
                else:
                    yield event
        finally:
            cancelled.set()  # the thread may be in a pause of minutes, and a program that ends waits for it

    def looks(self, cancelled: Callable[[], bool]) -> Generator[JobEvent | float, None, None]:
        """Yield what each look at the job shows, and how many seconds to sleep before the next one.

        Args:
            cancelled: Whether nobody wants the events any more, which ends the pauses of requests that fail.

        Raises:
            smddp.storage.s3_retries.Cancelled: It was cancelled in such a pause.
        """
        reader = self._open_log(cancelled) if self._open_log is not None else None
        metrics: MetricReader | None = None
        seen: set[tuple[str, datetime]] = set()
        began, ended = time.monotonic(), None
        try:
            while True:
                description = api_retries.ask(self._describe, cancelled)
                if self._with_values and metrics is None:
                    metrics = MetricReader.of(description)
                for transition in description.get("SecondaryStatusTransitions", []):
                    key = transition["Status"], transition["StartTime"]
                    if key not in seen:
                        seen.add(key)
                        yield StatusChange.of(transition)
                for line in reader.unread() if reader is not None else ():
                    yield line
                    yield from metrics.values(line) if metrics is not None else ()
                now = time.monotonic()
                if description["TrainingJobStatus"] in ENDED:
                    ended = now if ended is None else ended
                    if reader is None or now - ended >= _settling(description):
                        return
                yield min(_LONGEST_POLL, max(_SHORTEST_POLL, (now - began) / 100))
        finally:
            if metrics is not None:
                metrics.close()


def _settling(description: DescribeTrainingJobResponseTypeDef) -> float:
    """Return for how many seconds after its end was seen a job's last lines are waited for, whoever came when."""
    times = [transition["StartTime"].timestamp() for transition in description.get("SecondaryStatusTransitions", [])]
    if not times:
        return _LONGEST_SETTLING
    if time.time() - max(times) > _ALL_SHOWN:
        return 0.0
    return min(_LONGEST_SETTLING, (max(times) - min(times)) / 20)
