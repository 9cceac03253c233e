"""Follow a job: poll it until it has ended, and yield the news of each poll."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from estimators import api_retries
from estimators.job_handle.events import ENDED, JobEvent, StatusChange
from estimators.job_handle.metrics import MetricReader

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.log_reader import LogReader

_SHORTEST_POLL, _LONGEST_POLL = 0.25, 5.0
"""Seconds between two polls; the pause grows with the time of following."""
_LONGEST_SETTLING = 3.0
"""Seconds to wait at most for the last lines, which CloudWatch shows after the job's end; the wait grows with the job's
duration."""
_CANCELLED_SECONDS = 0.5
"""Longest wait for a change in a thread, which a cancelled event loop waits for."""
_ALL_SHOWN = 300.0
"""Seconds after a job's end by which CloudWatch shows all its lines, with a margin for this machine's clock."""


class Follower:
    """Follows one job from its beginning to its end. Sends no request before the first event is requested."""

    def __init__(
        self,
        describe: Callable[[], DescribeTrainingJobResponseTypeDef],
        open_log: Callable[[Callable[[], bool]], LogReader] | None,
        *,
        with_values: bool,
        await_change: Callable[[int, float], None] | None = None,
    ) -> None:
        """Follow a job by its `describe` call and, unless None, the log reader that `open_log` returns.

        `open_log` receives the function that cancels the reader's requests. `with_values` adds the metrics' values.
        `await_change` waits for more statuses than a number, with a time limit in seconds: a service that has it shows
        the whole log at the job's end. None: the follower sleeps between polls, and waits for the log to settle.
        """
        self._describe = describe
        self._open_log = open_log
        self._with_values = with_values
        self._await_change = await_change
        self._transitions = 0

    def events(self) -> Iterator[JobEvent]:
        """Yield the job's changes of status, its lines and their metric values as they arrive, until its end."""
        for event in self.looks(lambda: False):
            if not isinstance(event, float):
                yield event
            elif self._await_change is None:
                time.sleep(event)
            else:
                self._await_change(self._transitions, event)

    async def events_async(self) -> AsyncIterator[JobEvent]:
        """Yield the same events without blocking the event loop: requests run in other threads.

        Cancelling takes one request at most.
        """
        import asyncio

        cancelled = threading.Event()
        looks = self.looks(cancelled.is_set)
        try:
            while (event := await asyncio.to_thread(next, looks, None)) is not None:
                if not isinstance(event, float):
                    yield event
                elif self._await_change is None:
                    await asyncio.sleep(event)
                else:
                    await asyncio.to_thread(self._await_change, self._transitions, min(event, _CANCELLED_SECONDS))
        finally:
            cancelled.set()  # the thread may be in a retry's pause of minutes, and Python's exit waits for it

    def looks(self, cancelled: Callable[[], bool]) -> Generator[JobEvent | float, None, None]:
        """Yield the events of each poll, then the seconds to sleep before the next one.

        `cancelled` ends the retries of a failing request: then `smddp.storage.s3_errors.Cancelled` is raised.
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
                transitions = description.get("SecondaryStatusTransitions", [])
                self._transitions = len(transitions)
                for transition in transitions:
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
                    if reader is None or self._await_change or now - ended >= _settling(description):
                        return
                yield min(_LONGEST_POLL, max(_SHORTEST_POLL, (now - began) / 100))
        finally:
            if metrics is not None:
                metrics.close()


def _settling(description: DescribeTrainingJobResponseTypeDef) -> float:
    """Return the seconds to wait for a job's last lines after its end was first seen; 0 if it ended long ago."""
    times = [transition["StartTime"].timestamp() for transition in description.get("SecondaryStatusTransitions", [])]
    if not times:
        return _LONGEST_SETTLING
    if time.time() - max(times) > _ALL_SHOWN:
        return 0.0
    return min(_LONGEST_SETTLING, (max(times) - min(times)) / 20)
