"""What is known of an image: versions by its tag, and of the packages on the list those that the code imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.errors import EstimatorError
from estimators.rehearsal.image_content import ImageContent

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "train.py").write_text("import torch, yaml\nimport nowhere, smddp\nfrom sklearn import svm\n")
    return {"entry_point": str(tmp_path / "train.py"), "instance_type": "ml.g5.xlarge", "instance_count": 1}


def test_the_chosen_image_decides_the_versions(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    found = ImageContent.of(arguments | {"framework_version": "2.6.0", "py_version": "py312"}, None)
    assert (found.torch, found.python) == ("2.6", "3.12")
    assert found.requirements[:3] == ("torch==2.6.*", "boto3", "pip")
    assert found.requirements[-2:] == ("PyYAML", "scikit-learn")
    assert "nowhere" not in found.requirements


def test_so_does_one_of_awss_images_that_is_given(arguments: dict[str, Any]) -> None:
    found = ImageContent.of(arguments | {"image_uri": f"{AWS}:2.7.1-cpu-py312"}, None)
    assert (found.torch, found.python) == ("2.7", "3.12")


def test_of_another_image_nothing_is_known(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        EstimatorError, match=r"PyTorch and Python of its image mine:1 are not known\. Rehearse it with"
    ):
        ImageContent.of(arguments | {"image_uri": "mine:1"}, None)
