from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smddp.distributed import leave
from smddp.job import Job
from smddp.process.preemption import stop_signal


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()
    stop_signal.requested = False


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
