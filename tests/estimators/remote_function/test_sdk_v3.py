"""A remote function is sent by the SDK V3 as by V2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.sdk_v3 import python_with_sdk_v3

SCRIPT = """
import torch
from estimators import remote
from estimators.local import LocalSageMaker

@remote(role="arn:aws:iam::123456789012:role/A", instance_type="ml.m5.xlarge", logs=False)
def double(value):
    return {"doubled": value * 2}

if __name__ == "__main__":
    from estimators.sdk.installed import installed
    with LocalSageMaker() as sagemaker:
        result = double.options(sagemaker_session=sagemaker.session)(torch.tensor([1, 2]))
        print(installed(), result["doubled"].tolist())
"""


@pytest.mark.sdk_v3
@pytest.mark.slow
def test_its_result_comes_back(tmp_path: Path) -> None:
    script = tmp_path / "submit" / "submit.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    python = python_with_sdk_v3(tmp_path / "v3")
    ended = subprocess.run([python, script], capture_output=True, text=True, check=False, timeout=110)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["V3 [2, 4]"]), ended.stderr
