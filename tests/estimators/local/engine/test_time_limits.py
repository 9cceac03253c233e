"""Which limit ends a job."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from estimators.local.engine import time_limits
from estimators.local.engine.states import JobProgress
from estimators.local.engine.time_limits import TimeLimits
from tests.estimators.local.engine.test_request import parse


def test_of_two_limits_that_have_passed_the_first_names_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: now))
    progress = JobProgress.begin(datetime.now(timezone.utc))
    for max_wait, first in ((60, "MaxWaitTimeExceeded"), (100, "MaxRuntimeExceeded")):
        condition = {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": max_wait}
        limits = TimeLimits(parse(EnableManagedSpotTraining=True, StoppingCondition=condition))
        now += 10
        limits.begin_training()
        assert limits.reached(progress) is None
        assert limits.seconds_left(progress) == min(60, max_wait - 10)
        now += 1000  # a machine that slept looks late
        assert limits.reached(progress) == first
