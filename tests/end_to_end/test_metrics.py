"""A job that logs has its metrics in SageMaker's own description, though nobody gave metric definitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from estimators import Estimator


@pytest.mark.slow
def test_a_jobs_description_has_what_its_script_logs(estimator: Callable[..., Estimator]) -> None:
    job = estimator("logs.py").fit(logs=False)
    metrics = job.final_metrics()
    assert metrics["accuracy"] == 0.875
    assert metrics["step"] == 10
    assert metrics["loss"] > 0
    assert metrics["lr"] == 0.01
    assert "samples_per_second" in metrics
