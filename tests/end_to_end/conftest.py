"""One platform a worker, and an Estimator that points at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def platform() -> Iterator[LocalSageMaker]:
    with LocalSageMaker(grace_seconds=20) as sagemaker:
        yield sagemaker


@pytest.fixture
def estimator(platform: LocalSageMaker) -> Callable[..., Estimator]:
    def build(entry_point: str, **parameters: Any) -> Estimator:
        return Estimator(
            entry_point=entry_point,
            source_dir=str(SCRIPTS),
            role=platform.role,
            sagemaker_session=platform.session,
            **({"instance_type": "ml.g5.xlarge", "instance_count": 1, "max_run": 120} | parameters),
        )

    return build
