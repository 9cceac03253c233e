from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters import from_arguments


@dataclass
class Model:
    depth: int = 18
    bias: bool = True
    width: int = 64


@dataclass
class Config:
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
        ("", Config()),
        ("--batch-size 8", Config(batch_size=8)),
        ("--batch_size=8", Config(batch_size=8)),
        ("--lr -1e-3", Config(lr=-0.001)),
        ("--amp", Config(amp=True)),
        ("--amp --epochs 1", Config(amp=True, epochs=1)),
        ("--amp true", Config(amp=True)),
        ("--amp=False", Config()),
        ("--no-amp", Config()),
        ("--resume", Config(resume=True)),
        ("--no-resume", Config(resume=False)),
        ("--resume none", None),
        ("--resume None", Config()),
        ("--name 5", Config(name="5")),
        ("--name null", Config()),
        ('--name "null"', Config(name="null")),
        ("--name=--x", Config(name="--x")),
        ("--name a=b", Config(name="a=b")),
        ("--optimizer adam", Config(optimizer="adam")),
        ("--sizes 1 2 3", Config(sizes=[1, 2, 3])),
        ("--sizes 1", Config(sizes=[1])),
        ("--sizes [1,2]", Config(sizes=[1, 2])),
        ("--sizes []", Config()),
        ("--sizes 1 --lr 1 --sizes 2", Config(sizes=[1, 2], lr=1.0)),
        ("--files a b", Config(files=[Path("a"), Path("b")])),
        ("--betas 0.5 1", Config(betas=(0.5, 1.0))),
        ("--grid [1,2]", Config(grid=[[1, 2]])),
        ("--grid [1] [2]", Config(grid=[[1], [2]])),
        ('--weights {"a":0.5}', Config(weights={"a": 0.5})),
        ("--model.depth 34", Config(model=Model(depth=34))),
        ("--model.width 1", Config(model=Model(depth=50, width=1))),
        ("--no-model.bias", Config(model=Model(depth=50, bias=False))),
        ('--model {"depth":2}', Config(model=Model(depth=2))),
    ],
)
def test_options(line: str, expected: Config | None) -> None:
    if expected is None:
        with pytest.raises(HyperparameterError):
            from_arguments(Config, line.split())
    else:
        assert from_arguments(Config, line.split()) == expected


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
        from_arguments(Config, line.split())
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
        from_arguments(Config, ["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"  --batch-size +int +default: 256", line) for line in lines)
    assert any(re.fullmatch(r"  --model.depth +int +default: 18", line) for line in lines)
