"""Whole numbers that a script has computed, by numpy or torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from smddp.whole_numbers import as_whole_number, as_whole_numbers


@pytest.mark.parametrize("value", [8, np.int64(8), np.uint8(8), np.array(8), torch.tensor(8)])
def test_a_whole_number_of_any_type_becomes_an_int(value: Any) -> None:
    found = as_whole_number("batch_size", value)
    assert type(found) is int
    assert found == 8


@pytest.mark.parametrize("value", [8.0, "8", True, np.float64(8), np.array([8, 8]), torch.tensor(True), None])
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^batch_size is .*: give a whole number$"):
        as_whole_numbers(batch_size=value)
