import numpy as np
import pytest
import torch

from smddp.checkpoint.save.attempt import as_numbers


@pytest.mark.parametrize("value", [None, "good", torch.zeros(2), [1.0]])
def test_what_is_no_number_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"the metric 'accuracy' is .*: give a number"):
        as_numbers({"loss": 1.0, "accuracy": value})


def test_numbers_and_tensors_of_one_are_metrics() -> None:
    numbers = as_numbers({"steps": 3, "loss": torch.tensor(0.5), "rate": np.float32(2)})
    assert numbers == {"steps": 3, "loss": 0.5, "rate": 2.0}
    assert [type(value) for value in numbers.values()] == [int, float, float]
