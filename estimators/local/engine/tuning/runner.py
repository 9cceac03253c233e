"""A tuning job's way from its creation to its end, in a thread of its own."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from estimators.local.engine.errors import ApiError
from estimators.local.engine.job import JobRecord
from estimators.local.engine.tuning.search import Search
from estimators.local.engine.tuning.tuning_job import COMPLETED, FAILED, STOPPED, TriedJob, TuningRecord

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_LONGEST_REASON = 1024
ALL_FAILED = "All training jobs failed. Please take a look at the training jobs failures to get more details."
"""AWS's words."""

StartJob = Callable[[Mapping[str, Any]], JobRecord]


class TuningRunner:
    """Runs one tuning job.

    Args:
        record: What others see of it.
        search: What to try.
        start_job: Starts a training job of a request.
    """

    def __init__(self, record: TuningRecord, search: Search, start_job: StartJob) -> None:
        self._record = record
        self._search = search
        self._start_job = start_job
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tuning {record.name}", daemon=True)

    def start(self) -> None:
        """Begin, and return at once."""
        self._thread.start()

    def close(self) -> None:
        """Look after the training jobs no more; they are the engine's."""
        self._closed.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the tuning job has ended, or was closed."""
        self._thread.join(timeout)

    def _run(self) -> None:
        running: list[TriedJob] = []
        try:
            while not self._closed.is_set():
                running = self._take_results(running)
                if not self._record.has_time():
                    self._record.stop()
                if self._record.is_stopping or self._record.is_complete():
                    if self._record.is_stopping:
                        self._stop_all(running)
                    if not running:
                        self._finish()
                        return
                else:
                    while len(running) < self._record.request.parallel and not self._record.is_complete():
                        running.append(self._try_next())
                self._stop_early(running)
                self._closed.wait(_LOOK_SECONDS)
            self._record.finish(FAILED, "The platform was closed.")
        except Exception as error:
            if not self._closed.is_set():
                logger.exception("the tuning job %s can't go on", self._record.name)
            self._stop_all(running)
            while any(not tried.job.ended for tried in running) and not self._closed.wait(_LOOK_SECONDS):
                pass
            self._record.finish(FAILED, f"InternalServerError: {error}"[:_LONGEST_REASON])

    def _try_next(self) -> TriedJob:
        candidate = self._search.propose()
        name = f"{self._record.name}-{candidate.number + 1:03}-{secrets.token_hex(4)}"
        job = self._start_job(self._record.request.training_job(name, candidate.hyperparameters))
        with suppress(ApiError):  # it has ended already
            job.update({"TuningJobArn": self._record.arn})
        tried = TriedJob(number=candidate.number, job=job, hyperparameters=candidate.hyperparameters)
        self._record.add(tried)
        return tried

    def _take_results(self, running: Iterable[TriedJob]) -> list[TriedJob]:
        """Tell the search of the training jobs that have ended; return the others."""
        left = []
        for tried in running:
            if not tried.job.ended:
                left.append(tried)
                continue
            status = tried.job.describe()["TrainingJobStatus"]
            value = None if status == "Failed" else tried.job.metrics.last(self._record.request.metric)
            self._search.finish(tried.number, value, stopped=tried.stopped_early and status == "Stopped")
            if value is not None:
                self._record.add_result(tried, value)
        return left

    def _stop_early(self, running: Iterable[TriedJob]) -> None:
        for tried in running:
            history = tried.job.metrics.history(self._record.request.metric)
            if not tried.stopped_early and self._search.should_stop(tried.number, history):
                tried.stopped_early = True
                self._stop_all([tried])

    def _stop_all(self, jobs: Iterable[TriedJob]) -> None:
        for tried in jobs:
            with suppress(ApiError):  # it has ended meanwhile
                tried.job.stop()

    def _finish(self) -> None:
        tried = self._record.tried
        if self._record.is_stopping:
            self._record.finish(STOPPED)
        elif all(each.job.describe()["TrainingJobStatus"] == "Failed" for each in tried):
            self._record.finish(FAILED, ALL_FAILED)
        else:
            self._record.finish(COMPLETED)
