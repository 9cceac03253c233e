"""The result of a rehearsal, as text and as a notebook's table."""

from __future__ import annotations

import re

import pytest

from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.rehearsal import Rehearsal
from estimators.rehearsal.rehearsal import _failure


def test_a_notebook_shows_a_table_of_what_the_text_says() -> None:
    rehearsal = Rehearsal(
        topology="1 × ml.g5.xlarge",
        ranks=1,
        runtime="PyTorch 2.8, Python 3.12",
        seconds=12.0,
        steps=40,
        resumed_at=20,
        metrics={"loss": 0.5},
        model_bytes=1000,
        checkpoint_bytes=2000,
        memory_bytes=3000,
        samples=("a sample of training",),
    )
    shown = rehearsal._repr_html_()
    assert shown.count("<tr") == 7
    for part in (
        "1 × ml.g5.xlarge, as 1 rank, with PyTorch 2.8, Python 3.12",
        "40 in 12 s",
        "resumed from the checkpoint of step 20",
        "loss 0.5",
        "a sample of training",
    ):
        assert part in shown


@pytest.mark.parametrize(
    ("kind", "secondary", "attempt", "logs", "said"),
    [
        (TrainingJobFailed, "Failed", 1, True, "failed: why.*: the log above is all that is left of it. To repeat it"),
        (TrainingJobFailed, "Failed", 2, False, "failed, when it resumed from .* first attempt: why.*logs=True"),
        (TrainingJobStopped, "Stopped", 1, True, "failed: why"),
        (TrainingJobStopped, "MaxRuntimeExceeded", 2, True, "given up after 60 s, .* end after 40 optimizer steps"),
    ],
)
def test_a_failure_names_what_is_left_of_a_rehearsal(
    kind: type[TrainingJobFailed], secondary: str, attempt: int, logs: bool, said: str
) -> None:
    fault = kind(
        "digits-1 failed: why\nIts log: TrainingJob.attach('digits-1').logs(), or CloudWatch",
        job_name="digits-1",
        status="Failed",
        secondary_status=secondary,
        reason="why",
    )
    error = _failure(fault, "train.py (2 × ml.g5.xlarge)", attempt=attempt, steps=20, seconds=60, logs=logs)
    assert type(error) is (EstimatorError if secondary == "MaxRuntimeExceeded" else kind)
    assert re.search(said, str(error), re.DOTALL)
    assert str(error).startswith("The rehearsal ")
    assert "attach" not in str(error)
    assert "CloudWatch" not in str(error)
