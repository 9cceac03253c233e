"""What is decided between two batches, on one rank and with a clock of the test's own."""

from collections.abc import Iterator

import pytest

import smddp.distributed.ranks
from smddp import CheckpointPolicy
from smddp.distributed import join, leave
from smddp.job import Job
from smddp.process.preemption import stop_signal
from smddp.training.save_schedule import Pause, SaveSchedule


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(smddp.distributed.ranks, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    leave()
    stop_signal.requested = False


class Asked:
    """A schedule after a resume at step 10."""

    def __init__(self, job: Job, **policy: object) -> None:
        self.schedule = SaveSchedule(join(job.cluster), CheckpointPolicy(**policy))  # type: ignore[arg-type]
        self.schedule.start(10, saved=10)

    def decide(self, pause: Pause, step: int, batches: int = 0) -> tuple[bool, bool]:
        decision = self.schedule.decide(
            pause, step, failed=False, held=False, report=None, metrics=0.0, evaluation_batches=batches
        )
        return decision.save, decision.stop


def test_the_end_of_an_epoch_saves_and_a_stop_stops(job: Job, clock: Clock) -> None:
    asked = Asked(job, seconds=60)
    assert asked.decide(Pause.START, 10) == (False, False)
    assert asked.decide(Pause.END, 11) == (True, False)
    clock.now += 61
    stop_signal.requested = True
    assert asked.decide(Pause.STEP, 12) == (True, True)


def test_every_period_of_steps_saves_once(job: Job, clock: Clock) -> None:
    asked = Asked(job, every=4, seconds=None)
    saved = []
    for step in (11, 12, 13, 15, 17, 18, 19, 24):  # a batch may have several steps
        clock.now += 1e-6
        if asked.schedule.is_due(Pause.STEP, step) and asked.decide(Pause.STEP, step)[0]:
            saved.append(step)
    assert saved == [12, 17, 24]


def test_only_few_steps_ask_the_other_ranks(job: Job, clock: Clock) -> None:
    asked = Asked(job)
    due = []
    for step in range(11, 40):
        clock.now += 0.001
        if asked.schedule.is_due(Pause.STEP, step):
            asked.decide(Pause.STEP, step)
            due.append(step)
    assert due == [11, 13, 17, 25]
    assert asked.schedule.is_due(Pause.COLLECTIVE, 39)


def test_an_evaluation_that_may_be_long_begins_with_a_checkpoint(job: Job, clock: Clock) -> None:
    asked = Asked(job, seconds=None)
    assert asked.decide(Pause.EVALUATION, 10, batches=1000) == (False, False)  # no step yet: nothing to save
    clock.now += 0.5  # the pace of training: half a second a step
    asked.decide(Pause.STEP, 11)
    assert asked.decide(Pause.EVALUATION, 11, batches=60) == (False, False)
    assert asked.decide(Pause.EVALUATION, 11, batches=61) == (True, False)
    asked.schedule.evaluated(29.0)
    assert asked.decide(Pause.EVALUATION, 12, batches=61) == (False, False)
    asked.schedule.evaluated(31.0)
    assert asked.decide(Pause.EVALUATION, 13, batches=1) == (True, False)
