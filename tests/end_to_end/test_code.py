"""How code and what travels with it arrive in a job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_unchanged_code_trains_again_without_an_upload(
    tmp_path: Path,
    estimator: Callable[..., Estimator],
    platform: LocalSageMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "train.py").write_text(f"import layers\n\nprint('layers of', {tmp_path.name!r}, layers.COUNT)\n")
    (tmp_path / "layers.py").write_text("COUNT = 3\n")
    for _ in range(2):
        job = estimator("train.py", source_dir=str(tmp_path)).fit()
        assert ("algo-1", f"layers of {tmp_path.name} 3") in list(job.logs())
    code = [record.getMessage() for record in caplog.records if record.name == "estimators.sdk.code_upload"]
    assert [message.partition(",")[0] for message in code] == ["uploaded the code", "code unchanged"]
    assert code[0].split()[-1] == code[1].split()[-1]
