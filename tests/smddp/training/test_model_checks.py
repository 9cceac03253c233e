"""What a model and its optimizers are refused for, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import smddp
from smddp.checkpoint.restore.sharded_optimizer import ShardedOptimizer
from smddp.training.model_checks import check_sharded_optimizers

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(autouse=True)
def _group_of_one() -> Iterator[None]:
    smddp.join()
    yield
    smddp.leave()


def sharded(model: nn.Module, **options: Any) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1, **options)


@pytest.mark.parametrize(
    ("options", "place", "told"),
    [
        ({"overlap_with_ddp": True}, {}, "leave overlap_with_ddp out"),
        ({}, {"world_size": 2}, "divided among 1 ranks, and the job has 2"),
        ({"parameters_as_bucket_view": True}, {"device": META}, "will be moved to meta"),
    ],
)
def test_a_sharded_optimizer_that_would_train_wrongly_is_refused(
    options: dict[str, Any], place: dict[str, Any], told: str
) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=told):
        check_sharded_optimizers([sharded(model, **options)], model, **{"device": CPU, "world_size": 1, **place})


@pytest.mark.parametrize("options", [{}, {"parameters_as_bucket_view": True}])
def test_a_sharded_optimizer_that_stays_where_it_is_may_train(options: dict[str, Any]) -> None:
    model = nn.Linear(2, 1)
    optimizers = [sharded(model, **options), torch.optim.SGD(model.parameters(), lr=0.1)]
    check_sharded_optimizers(optimizers, model, device=CPU, world_size=1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda weights: torch.optim.Adam(weights, lr=0.1), "decoupled_weight_decay was False, and is True"),
        (lambda weights: torch.optim.SGD(weights, lr=0.1), "it has no"),
    ],
)
def test_a_state_of_another_kind_is_refused(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], told: str
) -> None:
    model = nn.Linear(2, 1)
    part = ShardedOptimizer(sharded(model), model, on_change="keep", speaks=True)
    with pytest.raises(ValueError, match=told):
        part.check_state_dict(make(model.parameters()).state_dict())
