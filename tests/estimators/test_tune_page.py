"""docs/how-to/tune.md names the parameters that a tuner of SDK V2 drops in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.instances import BEYOND_PYTORCH
from tests.estimators.test_parameters_page import IMAGE, OF_CALL, ROLE, SAMPLES, members

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "tune.md").read_text()
BY_ANOTHER_WAY = {"dependencies", "metric_definitions"}
"""What lies in the code's archive, and what the tuner is given itself."""


def definition(given: dict[str, Any], session: Any) -> dict[str, str]:
    """What a tuner sends of an Estimator."""
    from sagemaker.tuner import _TuningJob

    estimator = Estimator(**given, sagemaker_session=session).to_sagemaker()
    estimator._prepare_for_training("mine")
    config = _TuningJob._prepare_training_config(None, estimator, estimator.hyperparameters(), None)
    return dict(members(session._map_training_config(**config)))


@pytest.mark.slow
def test_the_page_names_what_a_tuner_drops(
    sagemaker_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("code/train.py", "code/other.py", "library/layers.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("")
    sagemaker_session.boto_session.client("s3").create_bucket(Bucket="elsewhere")
    hosts = {"instance_type": "ml.m5.xlarge", "instance_count": 1, "image_uri": IMAGE, "framework_version": "2.6.0"}
    dropped = set()
    for name in SAMPLES.keys() - OF_CALL - BEYOND_PYTORCH:  # which are refused for a tuner
        value, beside = SAMPLES[name]()
        job = {"entry_point": "code/train.py", "role": ROLE, **hosts, **beside}
        if definition(job, sagemaker_session) == definition({**job, name: value}, sagemaker_session):
            dropped.add(name)
    (paragraph,) = re.findall(r"A tuner drops .+?(?=\n\n)", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", paragraph)) == dropped - BY_ANOTHER_WAY
