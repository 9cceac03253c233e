from __future__ import annotations

import re
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters import decode, decode_untyped, encode


class Precision(Enum):
    FP32 = "fp32"
    BF16 = "bf16"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Model:
    depth: int = 18
    width: int = 64


@dataclass
class Config:
    epochs: int
    batch_size: int = 256
    lr: float = 0.1
    amp: bool = False
    precision: Precision = Precision.FP32
    schedule: Literal["cosine", "step"] = "cosine"
    sizes: list[int] = field(default_factory=list)
    data: Path = Path("data")
    model: Model = field(default_factory=lambda: Model(depth=50))
    teacher: Model | None = None

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr is {self.lr}: it must not be negative")


def test_fields_that_are_not_given_take_their_defaults() -> None:
    assert decode(Config, {"epochs": "3"}) == Config(epochs=3)


def test_a_field_whose_default_is_none_may_be_none() -> None:
    @dataclass
    class Implicit:
        name: str = None  # type: ignore[assignment]
        layers: list[int] = None  # type: ignore[assignment]
        depth: int = field(default_factory=lambda: 3)

    assert encode(decode(Implicit, {})) == {"name": None, "layers": None, "depth": 3}
    assert encode(decode(Implicit, {"name": "x", "layers": "[1]"})) == {"name": "x", "layers": [1], "depth": 3}
    with pytest.raises(HyperparameterError, match=r"layers: expected list\[int\] \| None, found 'x' \(str\)"):
        decode(Implicit, {"layers": '"x"'})
    with pytest.raises(HyperparameterError, match="depth: expected int, found None"):
        decode(Implicit, {"depth": "null"})


def test_the_platforms_own_keys_are_passed_over() -> None:
    raw = {"epochs": "3", "sagemaker_program": '"train.py"', "mp_parameters": "{}", "_tuning_objective_metric": "loss"}
    assert decode(Config, raw) == Config(epochs=3)
    assert decode_untyped(raw) == {"epochs": 3}


def test_a_field_may_have_a_platforms_name() -> None:
    @dataclass
    class Own:
        mp_parameters: str
        sagemaker_like: int = 0

    assert decode(Own, {"mp_parameters": '"x"', "sagemaker_like": "1"}) == Own("x", 1)


def test_keys_may_be_written_with_dashes_and_dots() -> None:
    config = decode(Config, {"epochs": "1", "batch-size": "8", "model.width": "4", "teacher.depth": "101"})
    assert config == Config(epochs=1, batch_size=8, model=Model(depth=50, width=4), teacher=Model(depth=101))


def test_an_enum_may_be_given_by_its_name_or_value() -> None:
    assert decode(Config, {"epochs": "1", "precision": "bf16"}).precision is Precision.BF16
    assert decode(Config, {"epochs": "1", "precision": '"BF16"'}).precision is Precision.BF16


@pytest.mark.parametrize(("text", "value"), [("nan", "nan"), ("-inf", "-inf"), (".5", "0.5"), ("1e-3", "0.001")])
def test_floats_in_pythons_spelling_are_understood(text: str, value: str) -> None:
    assert repr(decode(Model, {})) == "Model(depth=18, width=64)"

    @dataclass
    class Real:
        lr: float

    assert repr(decode(Real, {"lr": text}).lr) == value


@pytest.mark.parametrize(("text", "value"), [("True", True), ("true", True), ("False", False), ("false", False)])
def test_booleans_in_pythons_spelling_are_understood(text: str, value: bool) -> None:
    assert decode(Config, {"epochs": "1", "amp": text}).amp is value


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, '"32"', 32),  # the tuner of V2's SDK sends the category 32 so
        (int, "05", 5),
        (float, '"1e-3"', 0.001),
        (float, '"5"', 5.0),
        (bool, '"True"', True),
        (bool, "TRUE", True),
        (bool, "1", True),
        (bool, "0", False),
        (bool, "yes", True),
        (bool, "Off", False),
        (bool | None, "no", False),
        (bool | str, "False", False),
        (int | None, '"None"', None),
        (str | None, "None", None),
        (Path | None, "None", None),
        (Literal[16, 32], '"32"', 32),
        (Level, '"2"', Level.HIGH),
        (list[str], "['a', \"b's\"]", ["a", "b's"]),
        (list[bool], "[True, False]", [True, False]),
        (tuple[float, ...], "(.5, 1)", (0.5, 1.0)),
        (dict[int, str], "{1: 'a'}", {1: "a"}),
    ],
)
def test_a_text_that_only_the_fields_type_explains_is_read_by_it(annotation: Any, text: str, value: object) -> None:
    cls = make_dataclass("One", [("field", annotation)])
    assert repr(decode(cls, {"field": text}).field) == repr(value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "5", "5"),
        (str, "True", "True"),
        (str, "null", "null"),
        (str, "None", "None"),
        (str, "[1, 2]", "[1, 2]"),
        (int | str, "05", "05"),
        (int | str, '"5"', "5"),
        (bool | int, "1", 1),
        (bool | str, "yes", "yes"),
        (str | list[str], "['a']", "['a']"),
        (Literal["1", "2"], "1", "1"),
        (Any, "True", "True"),
        (Any, "None", "None"),
    ],
)
def test_a_text_that_fits_the_type_as_it_is_is_not_read_as_something_else(
    annotation: Any, text: str, value: object
) -> None:
    cls = make_dataclass("One", [("field", annotation)])
    assert repr(decode(cls, {"field": text}).field) == repr(value)  # type: ignore[attr-defined]


def test_json_data_is_taken_as_it_is() -> None:
    config = decode(Config, {"epochs": 3, "sizes": [1, 2], "model": {"depth": 2}, "schedule": "step"})
    assert config == Config(epochs=3, sizes=[1, 2], model=Model(depth=2), schedule="step")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "Config: missing epochs. Its fields are: epochs: int (required), batch_size: int = 256, lr: float = 0.1"),
        ({"epochs": "1", "batchsize": "8"}, "unknown hyperparameter 'batchsize' (did you mean 'batch_size'?)"),
        ({"epochs": "1", "model.dept": "8"}, "unknown hyperparameter 'model.dept' (did you mean 'model.depth'?)"),
        ({"epochs": "1", "lr.x": "8"}, "unknown hyperparameter 'lr.x'"),
        ({"epochs": "1", "zzz": "8"}, "unknown hyperparameter 'zzz'. Its fields"),
        ({"epochs": "ten"}, "epochs: expected int, found 'ten' (str)"),
        ({"epochs": '"ten"'}, "epochs: expected int, found 'ten' (str)"),
        ({"epochs": "1.0"}, "epochs: expected int, found 1.0 (float)"),
        ({"epochs": "true"}, "epochs: expected int, found True (bool)"),
        ({"epochs": "1", "amp": "2"}, "amp: expected bool, found 2 (int)"),
        ({"epochs": "1", "amp": 1}, "amp: expected bool, found 1 (int)"),
        ({"epochs": "1", "amp": "maybe"}, "amp: expected bool, found 'maybe' (str)"),
        ({"epochs": "1", "sizes": "{1, 2}"}, "sizes: expected list[int], found '{1, 2}' (str)"),
        ({"epochs": "1", "sizes": "[1, 2.5]"}, "sizes[1]: expected int, found 2.5 (float)"),
        ({"epochs": "1", "precision": "fp8"}, "precision: expected Precision (FP32, BF16), found 'fp8'"),
        ({"epochs": "1", "schedule": "linear"}, "schedule: expected Literal['cosine', 'step'], found 'linear'"),
        ({"epochs": "1", "model": '{"dept": 1}'}, "Model: unknown hyperparameter 'dept' (did you mean 'depth'?)"),
        ({"epochs": "1", "teacher": '{"depth": "1"}'}, "teacher.depth: expected int, found '1' (str)"),
        ({"epochs": "1", "batch-size": "1", "batch_size": "1"}, "batch_size is given twice"),
        ({"epochs": "1", "model": "{}", "model.depth": "1"}, "model.depth is given twice"),
        ({"epochs": "1", "model.depth": "1", "model": "{}"}, "model is given twice"),
        ({"epochs": "1", "lr": "-1"}, "Config refuses its values: lr is -1.0: it must not be negative"),
    ],
)
def test_what_does_not_fit_is_said_with_the_fields_there_are(raw: dict[str, str], message: str) -> None:
    with pytest.raises(HyperparameterError, match=re.escape(message)):
        decode(Config, raw)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(HyperparameterError) as caught:
        decode(Config, {"batchsize": "8", "lr": "fast", "amp": "?"})
    assert all(part in str(caught.value) for part in ("'batchsize'", "missing epochs", "lr: expected", "amp: expected"))


def test_an_annotation_that_cannot_be_resolved_is_named() -> None:
    @dataclass
    class Lost:
        model: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(HyperparameterError, match=r"annotation of Lost can't be resolved.*Nowhere"):
        decode(Lost, {})
