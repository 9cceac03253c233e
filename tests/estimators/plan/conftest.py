"""Jobs to plan, in front of moto."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import Estimator
from tests.estimators.conftest import ROLE


@pytest.fixture
def build(script: str, sagemaker_session: Any) -> Any:
    """Makes an Estimator of a script, with an hour and a half of time."""

    def estimator(**parameters: Any) -> Estimator:
        common = {
            "role": ROLE,
            "instance_type": "ml.g5.xlarge",
            "max_run": 5400,
            "sagemaker_session": sagemaker_session,
        }
        return Estimator(script, **{**common, **parameters})

    return estimator
