"""A hyperparameter arrives in a Hydra config as it left, whatever it looks like, or is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hydra import compose, initialize
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from smddp.errors import HyperparameterError
from smddp.hydra import to_overrides

TEXTS = st.text(alphabet="ab\\${}'\" \n\t=:,[]()~+#?1.é", max_size=12) | st.text(max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), inner)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module", autouse=True)
def _hydra() -> Iterator[None]:
    """Let Hydra look once for the file that called it: it goes through all modules."""
    with initialize(version_base=None, config_path=None):
        yield


def arrived(name: str, value: Any) -> Any:
    config = compose(overrides=[f"+{override}" for override in to_overrides({name: value})])
    return OmegaConf.to_container(config, resolve=True)


@settings(max_examples=30)
@given(VALUES)
@example("${oc.env:HOME}")
@example("\\${x}")
@example("\\\\${x} it's \"so\\")
@example("1e-3")
@example("null")
@example("a=b,c")
@example([0.1, "5", None, {"x": [True, "yes"]}])
@pytest.mark.slow
def test_any_value_arrives_as_it_left(value: Any) -> None:
    if _holds_missing(value):
        with pytest.raises(HyperparameterError, match="'name' can't be given to Hydra"):
            to_overrides({"name": value})
    else:
        (found,) = arrived("name", value).values()
        assert (json.dumps(found), type(found)) == (json.dumps(value), type(value))


def _holds_missing(value: Any) -> bool:
    """``???`` is OmegaConf's word for a value that is missing, quoted or not."""
    if isinstance(value, list | dict):
        return any(_holds_missing(inner) for inner in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value == "???"


def test_not_a_number_and_infinity_arrive() -> None:
    assert math.isnan(arrived("x", math.nan)["x"])
    assert arrived("x", -math.inf) == {"x": -math.inf}


@pytest.mark.parametrize("key", ["a=b", "", "a b", "a'"])
def test_a_name_that_hydra_would_take_for_another_is_refused(key: str) -> None:
    with pytest.raises(HyperparameterError, match="can't be given to Hydra") as refused:
        to_overrides({key: "s3cret"})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("key", ["5", "true", "a'b", "${x}"])
def test_a_key_of_a_dict_that_hydra_would_change_is_refused(key: str) -> None:
    with pytest.raises(HyperparameterError, match="'names' can't be given to Hydra"):
        to_overrides({"names": {key: 1}})


def test_names_may_add_a_key_or_choose_a_group() -> None:
    assert to_overrides({"+model.new": 1, "optimizer": "adam", "db@backup": "s3"}) == [
        "+model.new=1",
        "optimizer='adam'",
        "db@backup='s3'",
    ]
