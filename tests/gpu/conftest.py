"""Tests that need a GPU: without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smddp.distributed import leave
from smddp.job import Job
from smddp.process.preemption import stop_signal


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()
    stop_signal.requested = False


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
