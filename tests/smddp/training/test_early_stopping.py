from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from smddp import EarlyStopping


def updates(stopping: EarlyStopping, *values: float) -> list[bool]:
    return [stopping.update(value) for value in values]


def test_it_stops_after_so_many_values_that_are_no_better() -> None:
    stopping = EarlyStopping(patience=2)
    assert updates(stopping, 3.0, 2.0, 2.5, 1.0, 1.0, 1.5) == [False, False, False, False, False, True]
    assert stopping.best == 1.0


def test_larger_values_may_be_better_and_by_how_much_they_must_be() -> None:
    stopping = EarlyStopping(patience=2, mode="max", min_delta=0.1)
    assert updates(stopping, 0.5, 0.55, 0.65, 0.7, 0.75) == [False, False, False, False, True]
    assert stopping.best == 0.65


def test_nan_is_never_better_not_even_as_the_first() -> None:
    stopping = EarlyStopping(patience=2)
    assert updates(stopping, math.nan, 5.0, math.nan, math.nan) == [False, False, False, True]
    assert stopping.update(torch.tensor(4.0)) is False


@pytest.mark.parametrize("resume_at", range(1, 6))
def test_it_goes_on_from_its_state_wherever_that_is_taken(resume_at: int) -> None:
    values = [3.0, 3.0, 2.0, 2.1, 2.2, 2.3]
    whole = updates(EarlyStopping(patience=3), *values)
    first, second = EarlyStopping(patience=3), EarlyStopping(patience=3)
    before = updates(first, *values[:resume_at])
    second.load_state_dict(first.state_dict())
    assert before + updates(second, *values[resume_at:]) == whole == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"patience": 0}, "patience=0: give a number of evaluations, 1 or more"),
        ({"patience": 1.5}, "patience=1.5"),
        ({"patience": 1, "mode": "lowest"}, 'mode=\'lowest\': give "min" if smaller values are better, or "max"'),
        ({"patience": 1, "min_delta": -1.0}, "min_delta=-1.0: give a number from 0"),
        ({"patience": 1, "min_delta": math.nan}, "min_delta=nan"),
        ({"patience": 1, "min_delta": "0.1"}, "min_delta='0.1': give a number from 0"),
    ],
)
def test_what_is_not_possible_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as error:
        EarlyStopping(**options)
    assert told in str(error.value)
