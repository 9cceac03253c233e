from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters import from_json_file, from_sm_hps, load


@dataclass
class Config:
    epochs: int = 5
    name: str = "none"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "input" / "config" / "hyperparameters.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"epochs": "7", "name": '"1e3"', "sagemaker_program": '"train.py"'}))
    return path


def test_in_a_job_the_file_counts_and_the_lossy_command_line_does_not(job: Path, tmp_path: Path) -> None:
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_HPS": '{"epochs": 1}'}
    argv = ["--epochs", "7", "--name", "1000.0"]  # as the toolkit passes them
    assert load(Config, environ, argv) == Config(7, "1e3")


def test_the_path_may_be_given(job: Path) -> None:
    assert load(Config, {}, [], job) == Config(7, "1e3")


def test_sm_hps_counts_where_there_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_HPS": '{"epochs": 2, "name": "5"}'}
    assert load(Config, environ, ["--epochs", "9"]) == Config(2, "5")
    assert "Hyperparameters come from SM_HPS." in caplog.messages


def test_the_command_line_counts_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.delenv("SM_HPS", raising=False)
    monkeypatch.setattr("sys.argv", ["train.py", "--epochs", "9"])
    assert load(Config) == Config(epochs=9)


def test_a_str_in_sm_hps_is_the_value_itself() -> None:
    assert from_sm_hps(Config, '{"name": "\\"quoted\\""}').name == '"quoted"'
    with pytest.raises(HyperparameterError, match="name: expected str, found 5"):
        from_sm_hps(Config, '{"name": 5}')
    with pytest.raises(HyperparameterError, match="epochs: expected int, found 'five'"):
        from_sm_hps(Config, '{"epochs": "five"}')


def test_a_str_in_sm_hps_is_read_by_the_type_of_a_field_that_takes_none() -> None:
    assert from_sm_hps(Config, '{"epochs": "5", "name": "None"}') == Config(5, "None")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "must hold a JSON object of hyperparameters, not list")]
)
def test_what_is_no_json_object_is_refused_by_its_source(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(HyperparameterError, match=f"SM_HPS {message}"):
        from_sm_hps(Config, text)
    path = tmp_path / "hyperparameters.json"
    path.write_text(text)
    with pytest.raises(HyperparameterError, match=f"hyperparameters.json {message}"):
        from_json_file(Config, path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HyperparameterError, match=r"can't be read: .*nowhere\.json"):
        from_json_file(Config, tmp_path / "nowhere.json")
