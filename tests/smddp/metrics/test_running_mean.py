import math

import pytest
import torch

from smddp import RunningMean
from smddp.metrics.running_mean import check_reduce


def test_it_weighs_values_by_their_counts() -> None:
    mean = RunningMean()
    mean.add(torch.tensor([2.0], requires_grad=True), count=3)
    mean.add(6)
    assert mean.mean() == 3.0
    mean.add(13.0)
    assert mean.mean() == 5.0


def test_it_goes_on_from_its_state() -> None:
    mean = RunningMean()
    mean.add(1.0, count=2)
    state = mean.state_dict()
    mean.add(100.0)  # not in the state that was taken before

    other = RunningMean()
    other.add(7.0)  # forgotten
    other.load_state_dict(state)
    other.add(4.0)
    assert other.mean() == 2.0


def test_nothing_has_no_mean() -> None:
    mean = RunningMean()
    assert math.isnan(mean.mean())
    mean.add(3.0)
    mean.reset()
    assert math.isnan(mean.mean())


def test_it_refuses_what_is_no_single_value() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\) is no single value"):
        RunningMean().add(torch.ones(2))
    with pytest.raises(ValueError, match="count=-1"):
        RunningMean().add(1.0, count=-1)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduce='min': give 'mean', 'sum' or 'max'"):
        check_reduce("min")
