"""How one state follows another, and which limit ends a job."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from estimators.local.engine.hosted import states
from estimators.local.engine.hosted.states import Ending, HostLossLimit, JobProgress, TimeLimits
from estimators.local.engine.records import write_time
from estimators.service_model import service_model
from tests.estimators.local.engine.training.test_request import parse

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def go(*path: str) -> JobProgress:
    progress = JobProgress.begin(START)
    for minute, status in enumerate(path, start=1):
        progress = progress.enter(status, START + timedelta(minutes=minute))
    return progress


def test_each_transition_ends_when_the_next_begins() -> None:
    described = [transition.describe() for transition in go(states.DOWNLOADING, states.TRAINING).transitions]
    assert [entry["Status"] for entry in described] == ["Starting", "Downloading", "Training"]
    assert [entry.get("EndTime") for entry in described] == [entry["StartTime"] for entry in described[1:]] + [None]
    assert all(entry["StatusMessage"] for entry in described)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (states.COMPLETED, "Completed"),
        (states.FAILED, "Failed"),
        (states.STOPPED, "Stopped"),
        (states.MAX_RUNTIME_EXCEEDED, "Stopped"),
        (states.MAX_WAIT_TIME_EXCEEDED, "Stopped"),
    ],
)
def test_the_last_state_ends_at_once_and_sets_the_status(last: str, status: str) -> None:
    progress = go(states.DOWNLOADING, states.TRAINING, states.UPLOADING, last)
    assert (progress.status, progress.secondary_status, progress.ended) == (status, last, True)
    assert progress.transitions[-1].end == progress.training_end == progress.modified


def test_uploading_keeps_the_status_of_a_job_that_is_stopping() -> None:
    assert go(states.TRAINING, states.STOPPING, states.UPLOADING).status == "Stopping"
    assert go(states.TRAINING, states.UPLOADING).status == "InProgress"


def test_the_training_start_is_that_of_the_first_life() -> None:
    progress = go(states.TRAINING, states.INTERRUPTED, states.STARTING, states.TRAINING)
    assert progress.status == "InProgress"
    assert progress.training_start == START + timedelta(minutes=1)


def test_a_job_that_never_trained_has_no_training_times() -> None:
    progress = go(states.DOWNLOADING, states.FAILED)
    assert (progress.training_start, progress.training_end) == (None, None)


def test_all_states_are_the_services() -> None:
    known = service_model().shape_for("SecondaryStatus").enum  # type: ignore[attr-defined]
    ours = [
        value for name, value in vars(states).items() if name.isupper() and name != "IN_VAIN" and isinstance(value, str)
    ]
    assert len(ours) == 11
    assert set(ours) <= set(known)


def test_what_a_broken_off_attempt_has_trained_counts_once() -> None:
    training = go("Downloading", "Training")
    seen = training.modified + timedelta(seconds=100)
    assert training.broken_off(seen).training_seconds == 100
    assert training.enter("Stopping", seen).broken_off(seen).training_seconds == 100
    over = training.trained(60)
    assert over.broken_off(seen).training_seconds == over.training_seconds == 60
    assert JobProgress.from_json(json.loads(json.dumps(over.to_json(), default=write_time))) == over


def test_of_two_limits_that_have_passed_the_first_names_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(states, "time", SimpleNamespace(monotonic=lambda: now))
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


def test_losses_in_a_row_with_nothing_new_are_too_many_and_anything_else_begins_the_row_anew() -> None:
    loss_limit = HostLossLimit()
    attempts = [
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, True, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.INTERRUPT, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, True),
    ]
    for ending, progressed, too_many in attempts:
        assert loss_limit.too_many(ending, progressed=progressed) is too_many
