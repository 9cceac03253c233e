"""Hyperparameters in the bundle: read where the request points at them, and only if they are what was sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from smddp.errors import HyperparameterError
from smddp.job import Job
from smddp.job.hyperparameters import load
from smddp.job.hyperparameters.bundled import BUNDLED_FILE, POINTER, bundle_file


@dataclass
class Config:
    name: str = ""
    epochs: int = 1


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A job's tree; ``epochs`` is in both, as after a resume with another one."""
    content, digest = bundle_file({"name": '"5"', "epochs": "2"})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / BUNDLED_FILE).write_bytes(content)
    (tmp_path / "input" / "config").mkdir(parents=True)
    request = {POINTER: json.dumps(digest), "epochs": "3"}
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(request))
    return tmp_path


def test_a_config_and_a_job_have_them(base: Path) -> None:
    environ = {"SAGEMAKER_BASE_DIR": str(base)}
    assert load(Config, environ) == Config(name="5", epochs=3)
    assert Job.detect(environ).hyperparameters == {"name": "5", "epochs": 3}


@pytest.mark.parametrize("change", ["other", "none"])
def test_others_are_refused(base: Path, change: str) -> None:
    file = base / "code" / BUNDLED_FILE
    if change == "none":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"2", b"9"))
    with pytest.raises(HyperparameterError, match=r"can't be read there|is not what was sent with the job"):
        load(Config, {"SAGEMAKER_BASE_DIR": str(base)})
