from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, make_dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smddp.errors import HyperparameterError
from smddp.job import hyperparameters


class Optimizer(Enum):
    SGD = "adam"  # a value that is another one's name in lower case
    ADAM = "sgd"
    NONE = None


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Head:
    classes: int
    bias: bool = True
    names: list[str] | None = None


@dataclass
class Model:
    depth: int = 18
    width: float = 1.0
    head: Head = field(default_factory=lambda: Head(10))


@dataclass
class Config:
    boolean: bool
    nothing: None
    integer: int
    real: float
    text: str
    path: Path
    pure_path: PurePosixPath
    optimizer: Optimizer
    choice: Literal["null", "5", 5, True, None, Level.HIGH]
    model: Model
    integers: list[int]
    bare_list: list  # type: ignore[type-arg]
    mixed: list[int | float | str | bool | None]
    pair: tuple[int, str]
    reals: tuple[float, ...]
    empty: tuple[()]
    by_name: dict[str, float]
    by_number: dict[int, Optimizer]
    by_level: dict[Level, list[Path]]
    maybe_integer: Optional[int]  # noqa: UP045 - the older spelling counts too
    maybe_text: str | None
    maybe_flag: bool | None
    either: Union[int, str]  # noqa: UP007 - the older spelling counts too
    number: float | int
    anything_plain: int | float | str | bool | None
    text_or_list: str | list[str] | None
    number_or_head: int | Head
    maybe_head: Head | None
    maybe_path: Path | None
    whatever: Any


TRICKY = st.sampled_from(
    (
        *(
            "",
            " ",
            "5",
            "-0",
            "1e3",
            "123e4567",
            "NaN",
            "Infinity",
            "null",
            "None",
            "true",
            "True",
            "False",
            "nan",
            ".5",
        ),
        *('"', '"quoted"', ' "quoted" ', "[1]", "[]", "{}", '{"__text__": "x"}', '{"a": 1}', "a,b", "--flag", "'x'"),
        *("\\", "\n", "é😀", "SGD", "adam", "inf", "1_000", "0x1", "9" * 5000, "[" * 3000),
    )
)
TEXT = st.one_of(TRICKY, st.text(), st.recursive(st.integers(), lambda inner: st.lists(inner)).map(json.dumps))
INTEGERS = st.integers()
REALS = st.floats()  # nan, infinities and -0.0 among them
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, REALS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)
PATHS = st.one_of(TRICKY, st.just("a/../b")).map(lambda text: Path(text.replace("\0", "")))
HEADS = st.builds(Head, classes=INTEGERS, bias=st.booleans(), names=st.one_of(st.none(), st.lists(TEXT, max_size=3)))
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "nothing": st.none(),
    "integer": INTEGERS,
    "real": REALS,
    "text": TEXT,
    "path": PATHS,
    "pure_path": PATHS.map(PurePosixPath),
    "optimizer": st.sampled_from(Optimizer),
    "choice": st.sampled_from(["null", "5", 5, True, None, Level.HIGH]),
    "model": st.builds(Model, depth=INTEGERS, width=REALS, head=HEADS),
    "integers": st.lists(INTEGERS, max_size=4),
    "bare_list": st.lists(PLAIN, max_size=3),
    "mixed": st.lists(st.one_of(INTEGERS, REALS, TEXT, st.booleans(), st.none()), max_size=4),
    "pair": st.tuples(INTEGERS, TEXT),
    "reals": st.lists(REALS, max_size=4).map(tuple),
    "empty": st.just(()),
    "by_name": st.dictionaries(TEXT, REALS, max_size=3),
    "by_number": st.dictionaries(INTEGERS, st.sampled_from(Optimizer), max_size=3),
    "by_level": st.dictionaries(st.sampled_from(Level), st.lists(PATHS, max_size=2), max_size=2),
    "maybe_integer": st.one_of(st.none(), INTEGERS),
    "maybe_text": st.one_of(st.none(), TEXT),
    "maybe_flag": st.sampled_from([None, True, False]),
    "either": st.one_of(INTEGERS, TEXT),
    "number": st.one_of(INTEGERS, REALS),
    "anything_plain": st.one_of(st.none(), st.booleans(), INTEGERS, REALS, TEXT),
    "text_or_list": st.one_of(st.none(), TEXT, st.lists(TEXT, max_size=3)),
    "number_or_head": st.one_of(INTEGERS, HEADS),
    "maybe_head": st.one_of(st.none(), HEADS),
    "maybe_path": st.one_of(st.none(), PATHS),
    "whatever": PLAIN,
}


def v2(values: dict[str, Any]) -> dict[str, str]:
    """What V2's SDK sends: ``EstimatorBase._json_encode_hyperparameters``, and its own keys beside."""
    return {key: json.dumps(value) for key, value in values.items()} | {"sagemaker_program": '"train.py"'}


def v3(values: dict[str, Any]) -> dict[str, str]:
    """What V3's SDK sends."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def test_every_field_has_a_strategy() -> None:
    assert [entry.name for entry in fields(Config)] == list(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_value_comes_back_as_it_left_in_both_dialects(name: str, data: st.DataObject) -> None:
    cls = make_dataclass("One", [(name, _annotations()[name])])
    config = cls(**{name: data.draw(STRATEGIES[name])})
    values = hyperparameters.encode(config)
    for wire in (v2(values), v3(values), hyperparameters.to_strings(config)):
        assert repr(hyperparameters.decode(cls, wire)) == repr(config)  # repr: nan is nan, 1 is not 1.0, 0.0 not -0.0


@settings(max_examples=15, deadline=None)
@given(config=st.builds(Config, **STRATEGIES))
def test_a_whole_config_comes_back_in_both_dialects_and_from_sm_hps(config: Config) -> None:
    values = hyperparameters.encode(config)
    for wire in (v2(values), v3(values)):
        assert repr(hyperparameters.decode(Config, wire)) == repr(config)
    assert repr(hyperparameters.from_sm_hps(Config, json.dumps(values))) == repr(config)


@given(text=TEXT)
def test_a_plain_str_of_either_sdks_user_comes_back(text: str) -> None:
    cls = make_dataclass("One", [("text", str)])
    assert hyperparameters.decode(cls, v2({"text": text})) == cls(text)
    if not text.strip().startswith(('"', "{")):  # V3's user who sends quotes means JSON, as for the toolkit
        assert hyperparameters.decode(cls, v3({"text": text})) == cls(text)


def test_only_what_would_be_misread_is_wrapped() -> None:
    cls = make_dataclass("Some", [("a", str), ("b", str), ("c", "int | str"), ("d", "int | str")])
    values = hyperparameters.encode(cls("5", '"5"', "adam", "5"))
    assert values == {"a": "5", "b": {"__text__": '"5"'}, "c": "adam", "d": {"__text__": "5"}}


def test_an_int_in_a_float_field_becomes_a_float() -> None:
    cls = make_dataclass("One", [("lr", float)])
    assert repr(hyperparameters.decode(cls, hyperparameters.to_strings(cls(1)))) == "One(lr=1.0)"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Path | str, "text that looks like a path"),
        (list[int] | tuple[int, ...], (1, 2)),
        (Optimizer | str, "SGD"),
        (Any, (1, 2)),
        (Any, {1: 2}),
        (dict[int | str, int], {1: 1}),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_when_it_is_sent(annotation: Any, value: Any) -> None:
    cls = make_dataclass("One", [("field", annotation)])
    with pytest.raises(HyperparameterError, match="field: "):
        hyperparameters.encode(cls(value))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", r"field: expected int, found '5' \(str\)"),
        (int, True, r"field: expected int, found True \(bool\)"),
        (int, 5.0, r"field: expected int, found 5.0 \(float\)"),
        (float, "0.1", "expected float"),
        (float, 10**400, "expected float"),
        (str, Path("x"), "expected str"),
        (str | None, 5, r"expected str \| None, found 5 \(int\)"),
        (list[int], [1, "2"], r"field\[1\]: expected int, found '2'"),
        (tuple[int, str], (1,), r"expected tuple\[int, str\], found \(1,\)"),
        (dict[str, int], {1: 1}, "key of field: expected str, found 1"),
        (Literal["a", "b"], "c", r"expected Literal\['a', 'b'\], found 'c'"),
        (Optimizer, "SGD", "expected Optimizer"),
        (Model, Head(1), "expected Model"),
        (complex, 1j, "field has the type complex; hyperparameters can be bool, int"),
        (set[int], {1}, r"field has the type set\[int\]"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused_when_it_is_sent(annotation: Any, value: Any, message: str) -> None:
    cls = make_dataclass("One", [("field", annotation)])
    with pytest.raises(HyperparameterError, match=message):
        hyperparameters.encode(cls(value))


def test_what_is_no_dataclass_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="not a dataclass"):
        hyperparameters.encode({"epochs": 1})


def _annotations() -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(Config)
