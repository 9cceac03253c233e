"""One platform a worker, and an Estimator that points at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker
from tests.fork_python import ForkPython

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def platform(fork_server: ForkPython) -> Iterator[LocalSageMaker]:
    with ExitStack() as stack:
        with fork_server.in_use():  # the platform's jobs too, by whatever test they are sent
            platform = stack.enter_context(LocalSageMaker(grace_seconds=20))
        yield platform


@pytest.fixture
def estimator(platform: LocalSageMaker) -> Callable[..., Estimator]:
    def build(entry_point: str, **parameters: Any) -> Estimator:
        return Estimator(
            entry_point=entry_point,
            role=platform.role,
            sagemaker_session=platform.session,
            **(
                {"source_dir": str(SCRIPTS), "instance_type": "ml.g5.xlarge", "instance_count": 1, "max_run": 120}
                | parameters
            ),
        )

    return build


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""
