"""Runs a tuning job from its creation to its end, in a thread of its own."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from estimators.local.engine.errors import ApiError
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.tuning.record import COMPLETED, FAILED, STOPPED, Trial, TuningRecord
from estimators.local.engine.tuning.study import Proposal, Study

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_LONGEST_REASON = 1024
ALL_FAILED = "All training jobs failed. Please take a look at the training jobs failures to get more details."
"""AWS's words."""

StartJob = Callable[[Mapping[str, Any]], TrainingRecord]


class TuningRunner:
    """Runs one tuning job: starts the training jobs that the study proposes, and records their results."""

    def __init__(self, record: TuningRecord, study: Study, start_job: StartJob) -> None:
        self._record = record
        self._study = study
        self._start_job = start_job
        self._close_reason = ""
        # Order: `close` sets the reason first; it is read after the event is set. The first reason stays: after a
        # failure of the platform, its later close does not hide the failure.
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tuning {record.name}", daemon=True)

    def start(self) -> None:
        """Begin, and return at once."""
        self._thread.start()

    def close(self, reason: str) -> None:
        """End as Failed with the first call's reason. The engine ends the training jobs."""
        self._close_reason = self._close_reason or reason
        self._closed.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds until the tuning job has ended; None: without a limit."""
        self._thread.join(timeout)

    def _run(self) -> None:
        running: list[Trial] = []
        try:
            while not self._closed.is_set():
                running = self._take_results(running)
                if not self._record.has_time():
                    self._record.stop()
                while len(running) < self._record.request.parallel and self._wants_more():
                    proposal = self._study.ask()
                    if not self._wants_more():  # `ask` may take seconds: a stop or the end may have come
                        self._study.tell(proposal.number, None, pruned=False)
                        break
                    running.append(self._start(proposal))
                if self._record.is_stopping:
                    self._stop_all(running)
                if not running and not self._closed.is_set():
                    self._finish()
                    return
                self._prune(running)
                self._closed.wait(_LOOK_SECONDS)
            self._record.finish(FAILED, self._close_reason[:_LONGEST_REASON])
        except Exception as error:
            if self._closed.is_set():  # caused by the close of the engine
                self._record.finish(FAILED, self._close_reason[:_LONGEST_REASON])
                return
            logger.exception("the tuning job %s can't continue", self._record.name)
            self._stop_all(self._record.trials)
            while any(not trial.job.ended for trial in self._record.trials) and not self._closed.wait(_LOOK_SECONDS):
                pass
            self._record.finish(FAILED, f"InternalServerError: {error}"[:_LONGEST_REASON])

    def _wants_more(self) -> bool:
        return not self._closed.is_set() and self._record.wants_more()

    def _start(self, proposal: Proposal) -> Trial:
        name = f"{self._record.name}-{proposal.number + 1:03}-{secrets.token_hex(4)}"
        self._record.expect(proposal.number, name, proposal.hyperparameters)
        job = self._start_job(self._record.request.training_job(name, proposal.hyperparameters))
        trial = Trial(number=proposal.number, job=job, hyperparameters=proposal.hyperparameters)
        self._record.add(trial)  # at once: only added trials are listed and stopped
        with suppress(ApiError):  # the job has ended already
            job.update({"TuningJobArn": self._record.arn})
        return trial

    def _take_results(self, running: Iterable[Trial]) -> list[Trial]:
        """Tell the study the results of ended trials; return the other trials."""
        left = []
        for trial in running:
            if not trial.job.ended:
                left.append(trial)
                continue
            status = trial.job.describe()["TrainingJobStatus"]
            value = None if status == "Failed" else trial.job.metrics.last(self._record.request.metric)
            self._study.tell(trial.number, value, pruned=trial.pruned and status == "Stopped")
            if value is not None:
                self._record.add_result(trial, value)
        return left

    def _prune(self, running: Iterable[Trial]) -> None:
        for trial in running:
            history = trial.job.metrics.history(self._record.request.metric)
            if not trial.pruned and self._study.should_prune(trial.number, history):
                trial.pruned = True
                self._stop_all([trial])

    def _stop_all(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            with suppress(ApiError):  # the job has ended meanwhile
                trial.job.stop()

    def _finish(self) -> None:
        if self._record.is_stopping:
            self._record.finish(STOPPED)
        elif all(trial.job.describe()["TrainingJobStatus"] == "Failed" for trial in self._record.trials):
            self._record.finish(FAILED, ALL_FAILED)
        else:
            self._record.finish(COMPLETED)
