from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smddp.distributed import leave
from smddp.job import Job
from smddp.process.preemption import stop_signal
from smddp.training.active_runs import active_runs


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    # A run of another test may still be there: what is alive when modules are frozen is never collected as garbage.
    for runs in (active_runs._trained, active_runs._open, active_runs._own_loops):
        runs.clear()
    yield
    leave()
    stop_signal.requested = False


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
