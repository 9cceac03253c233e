"""What the live line of a job says."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from estimators.job_handle.events import MetricValue, StatusChange
from estimators.job_handle.progress import ProgressLine, sparkline

BEGAN = 1_800_000_000.0


class Job:
    """A job whose clock the test moves."""

    def __init__(self, **hyperparameters: str) -> None:
        self.now = BEGAN
        self.progress = ProgressLine(hyperparameters, clock=lambda: self.now)

    def status(self, status: str) -> None:
        self.progress.update(StatusChange(time=self.time, status=status, message=""))

    def logs(self, step: float | None, epoch: float | None, **metrics: float) -> None:
        for name, value in metrics.items():
            event = MetricValue(time=self.time, host="algo-1", step=step, epoch=epoch, metric=name, value=value)
            self.progress.update(event)

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.now, timezone.utc)


def test_it_says_what_is_known_so_far() -> None:
    job = Job(epochs="4")
    assert job.progress.text(100) == "waiting 0 s"
    job.status("Training")
    job.now += 65
    assert job.progress.text(100) == "Training 1:05 min"
    job.logs(step=10, epoch=0, loss=2.0, samples_per_second=812.4)
    assert job.progress.text(100) == "Training 1:05 min  epoch 0/4  step 10  loss 2  ▁  812 samples/s"


def test_the_time_left_comes_from_the_epochs_and_their_steps() -> None:
    job = Job(epochs="4")
    job.status("Training")
    for step in range(10, 110, 10):  # 50 steps an epoch, a step a second
        job.now += 10
        job.logs(step=step, epoch=step // 50, loss=1.0)
    assert "ETA 1:40 min" in job.progress.text(100)
    job.now += 40
    assert "ETA 1:00 min" in job.progress.text(100)


def test_the_time_left_comes_from_the_most_steps() -> None:
    job = Job(max_steps="100", epochs="7")
    for step in (10, 20):
        job.now += 5
        job.logs(step=step, epoch=None, loss=1.0)
    assert "step 20/100" in job.progress.text(100)
    assert "ETA 40 s" in job.progress.text(100)


def test_an_interruption_does_not_count_as_time_of_steps() -> None:
    job = Job(max_steps="100")
    for step in (10, 20):
        job.now += 5
        job.logs(step=step, epoch=None, loss=1.0)
    for status in ("Interrupted", "Starting", "Training"):
        job.now += 1000
        job.status(status)
    assert "ETA" not in job.progress.text(100)
    for step in (12, 14):
        job.now += 1
        job.logs(step=step, epoch=None, loss=1.0)
    assert "ETA 43 s" in job.progress.text(100)


def test_what_does_not_fit_is_left_out_by_its_importance() -> None:
    job = Job(epochs="4")
    job.status("Training")
    job.logs(step=10, epoch=0, loss=2.0, samples_per_second=812)
    assert job.progress.text(33) == "Training 0 s  epoch 0/4  step 10"
    assert job.progress.text(30) == "Training 0 s  step 10"


@pytest.mark.parametrize(
    ("values", "columns", "shown"),
    [
        ([1.0], 4, "▁"),
        ([5.0, 5.0], 4, "▁▁"),
        ([0.0, 7.0], 4, "▁█"),
        ([8.0, 8.0, 4.0, 4.0, 0.0, 2.0], 3, "█▄▁"),
        ([1e308, 1.7e308, 1.0], 2, "█▁"),
        ([-1.7e308, 1.7e308], 2, "▁█"),
        ([1e308] * 40, 16, "▁" * 16),
    ],
)
def test_a_sparkline_is_the_course_of_means(values: list[float], columns: int, shown: str) -> None:
    assert sparkline(values, columns) == shown


@pytest.mark.parametrize("text", ['"many"', "true", "-1", "{", "0", "Infinity", "1" * 400, "[" * 2500])
def test_hyperparameters_that_say_no_number_are_passed_over(text: str) -> None:
    job = Job(epochs=text)
    job.logs(step=1, epoch=0, loss=1.0)
    assert "epoch 0 " in job.progress.text(100)


@pytest.mark.parametrize(("name", "value", "step"), [("epochs", "10", 1e308), ("max_steps", "1e308", 2.0)])
def test_numbers_beyond_reason_show_no_time_left(name: str, value: str, step: float) -> None:
    job = Job(**{name: value})
    for at in (1.0, step):
        job.now += 60
        job.logs(step=at, epoch=1, loss=1.7e308)
        text = job.progress.text(100)
    assert "loss 1.7e+308" in text
    assert "ETA" not in text
