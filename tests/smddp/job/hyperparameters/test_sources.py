from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from smddp.errors import HyperparameterError
from smddp.job import Job
from smddp.job.hyperparameters import from_arguments, from_json_file, from_sm_hps, load
from smddp.job.hyperparameters.sources import BUNDLED_FILE, POINTER, bundle_file


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
    caplog.set_level(logging.DEBUG)
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


@dataclass
class Model:
    depth: int = 18
    bias: bool = True
    width: int = 64


@dataclass
class Options:
    epochs: int = 5
    batch_size: int = 256
    lr: float = 0.1
    amp: bool = False
    resume: bool | None = None
    name: str | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    sizes: list[int] = field(default_factory=list)
    files: list[Path] | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    grid: list[list[int]] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    model: Model = field(default_factory=lambda: Model(depth=50))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Options()),
        ("--batch-size 8", Options(batch_size=8)),
        ("--batch_size=8", Options(batch_size=8)),
        ("--lr -1e-3", Options(lr=-0.001)),
        ("--amp", Options(amp=True)),
        ("--amp --epochs 1", Options(amp=True, epochs=1)),
        ("--amp true", Options(amp=True)),
        ("--amp=False", Options()),
        ("--no-amp", Options()),
        ("--resume", Options(resume=True)),
        ("--no-resume", Options(resume=False)),
        ("--resume none", None),
        ("--resume None", Options()),
        ("--name 5", Options(name="5")),
        ("--name null", Options()),
        ('--name "null"', Options(name="null")),
        ("--name=--x", Options(name="--x")),
        ("--name a=b", Options(name="a=b")),
        ("--optimizer adam", Options(optimizer="adam")),
        ("--sizes 1 2 3", Options(sizes=[1, 2, 3])),
        ("--sizes 1", Options(sizes=[1])),
        ("--sizes [1,2]", Options(sizes=[1, 2])),
        ("--sizes []", Options()),
        ("--sizes 1 --lr 1 --sizes 2", Options(sizes=[1, 2], lr=1.0)),
        ("--files a b", Options(files=[Path("a"), Path("b")])),
        ("--betas 0.5 1", Options(betas=(0.5, 1.0))),
        ("--grid [1,2]", Options(grid=[[1, 2]])),
        ("--grid [1] [2]", Options(grid=[[1], [2]])),
        ('--weights {"a":0.5}', Options(weights={"a": 0.5})),
        ("--model.depth 34", Options(model=Model(depth=34))),
        ("--model.width 1", Options(model=Model(depth=50, width=1))),
        ("--no-model.bias", Options(model=Model(depth=50, bias=False))),
        ('--model {"depth":2}', Options(model=Model(depth=2))),
    ],
)
def test_options(line: str, expected: Options | None) -> None:
    if expected is None:
        with pytest.raises(HyperparameterError):
            from_arguments(Options, line.split())
    else:
        assert from_arguments(Options, line.split()) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--batchsize 8", "unknown hyperparameter 'batchsize' (did you mean 'batch_size'?)"),
        ("--batch 8", "unknown hyperparameter 'batch'"),
        ("--no-lr", "unknown hyperparameter 'no-lr'"),
        ("train --lr 1", "unexpected argument 'train'"),
        ("--lr=1 2", "unexpected argument '2'"),
        ("--lr", "lr needs a value: float"),
        ("--lr 1 2", "lr: expected float, found 2: 1 2"),
        ("--lr 1 --lr 2", "lr: expected float, found 2: 1 2"),
        ("--batch-size 1 --batch_size 2", "batch_size: expected int, found 2"),
        ("--betas 1 2 3", "betas: expected tuple[float, float], found 3: 1 2 3"),
        ("--amp train", "amp: expected bool, found 'train' (str)"),
        ("--sizes 1 two", "sizes: expected int, found 'two' (str)"),
        ("--model.depht 1", "unknown hyperparameter 'model.depht' (did you mean 'model.depth'?)"),
        ("-x", "unexpected argument '-x'"),
    ],
)
def test_what_does_not_fit_is_said_with_the_fields_there_are(line: str, message: str) -> None:
    with pytest.raises(HyperparameterError, match=re.escape(message)) as caught:
        from_arguments(Options, line.split())
    assert "Its fields are: epochs: int = 5, batch_size: int = 256" in str(caught.value)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_prints_the_fields_and_succeeds(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Needs:
        data: Path
        lr: float = 0.1

    monkeypatch.setattr("sys.argv", ["/somewhere/train.py"])
    with pytest.raises(SystemExit) as caught:
        from_arguments(Needs, ["--lr", "1", option])
    assert caught.value.code == 0
    assert capsys.readouterr().out == (
        "usage: train.py [--field value ...]\n\nfields:\n  --data  Path   required\n  --lr    float  default: 0.1\n"
    )


def test_help_lists_the_fields_of_nested_dataclasses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        from_arguments(Options, ["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"  --batch-size +int +default: 256", line) for line in lines)
    assert any(re.fullmatch(r"  --model.depth +int +default: 18", line) for line in lines)


@dataclass
class BundledConfig:
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
    assert load(BundledConfig, environ) == BundledConfig(name="5", epochs=3)
    assert Job.detect(environ).hyperparameters == {"name": "5", "epochs": 3}


@pytest.mark.parametrize("change", ["other", "none"])
def test_others_are_refused(base: Path, change: str) -> None:
    file = base / "code" / BUNDLED_FILE
    if change == "none":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"2", b"9"))
    with pytest.raises(HyperparameterError, match=r"can't be read there|is not what was sent with the job"):
        load(BundledConfig, {"SAGEMAKER_BASE_DIR": str(base)})
