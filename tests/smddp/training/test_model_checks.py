"""What a model and its optimizers are refused for, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import smddp
from smddp.checkpoint.parts.sharded_optimizer import ShardedOptimizer
from smddp.job import Job
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
        (lambda weights: torch.optim.SGD(weights, lr=0.1), "it lacks"),
    ],
)
def test_a_state_of_another_kind_is_refused(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], told: str
) -> None:
    model = nn.Linear(2, 1)
    part = ShardedOptimizer(sharded(model), model, on_change="keep", logs=True)
    with pytest.raises(ValueError, match=told):
        part.check_state_dict(make(model.parameters()).state_dict())


def test_a_sharded_optimizers_groups_are_found_by_names_that_came_later() -> None:
    def part(first: str, second: str) -> tuple[ZeroRedundancyOptimizer, ShardedOptimizer]:
        model, decays = nn.ModuleDict({first: nn.Linear(2, 1, bias=False)}), {"old": 0.5, "new": 0.0}
        groups = [{"params": [model[first].weight], "weight_decay": decays[first]}]
        optimizer = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, lr=0.1)
        found = ShardedOptimizer(optimizer, model, on_change="refuse", logs=True)
        model[second] = nn.Linear(2, 1, bias=False)
        optimizer.add_param_group({"params": [model[second].weight], "weight_decay": decays[second]})
        return optimizer, found

    _, saved = part("old", "new")
    saved.gather_state_dict(keep=True)
    state = saved.state_dict()
    assert [group["param_names"] for group in state["param_groups"]] == [["old.weight"], ["new.weight"]]
    optimizer, other = part("new", "old")
    other.check_state_dict(state)
    other.load_state_dict(state)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"precision": "fp16"}, "precision='fp16' has a loss scaler"),
        ({"precision": "O2"}, "precision='O2' has a loss scaler"),
        ({"on_nonfinite": "skip"}, "give on_nonfinite='raise'"),
        ({"on_nonfinite": "stop"}, "give on_nonfinite='raise'"),
    ],
)
def test_powersgd_is_refused_where_training_goes_on_after_gradients_that_are_not_finite(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    job, model = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=told):
        smddp.Trainer(job, model, optimizer, parallel=smddp.DDPOptions(comm_hook="powersgd"), **options)
    smddp.Trainer(job, model, optimizer, parallel=smddp.DDPOptions(comm_hook="powersgd"), on_nonfinite="raise")


def shard(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))  # type: ignore[return-value]


def shard_part(model: nn.Sequential) -> nn.Module:
    shard(model[1])
    return model


def shard_old(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=CPU)


def divide(model: nn.Sequential) -> nn.Module:
    parallelize_module(model[0], init_device_mesh("cpu", (1,)), ColwiseParallel())
    return model


@pytest.mark.filterwarnings("ignore:FSDP is switching")
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (shard_part, "0.weight is in no module that fully_shard was applied to, so its gradients differ by rank"),
        (shard_old, "it is a FullyShardedDataParallel"),
        (divide, "0.weight is a DTensor, and no module is sharded by fully_shard"),
        (lambda model: torch.compile(divide(model)), "0.weight is a DTensor, and no module is sharded by fully_shard"),
    ],
)
def test_a_sharded_model_is_refused_at_the_start(
    make: Callable[[nn.Module], nn.Module], found: str, tmp_path: Path
) -> None:
    model = make(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = (
        rf"the model is sharded in a way that the Trainer can't train: {found}. Give the plain module, with parallel="
    )
    with pytest.raises(ValueError, match=told):
        smddp.Trainer(Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), model, optimizer)


def hooked(model: nn.Module) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient * 0)


@pytest.mark.parametrize(
    ("change", "optimizer", "told"),
    [
        (hooked, torch.optim.SGD, "has hooks on its gradient, and a model that is divided, or was made on the meta"),
        (
            None,
            torch.optim.Adagrad,
            r"the optimizer \(Adagrad\) has a state already, of parameters that will be replaced",
        ),
        (None, sharded, "the ZeroRedundancyOptimizer keeps parameters of its own, and a model on the meta device"),
    ],
)
def test_what_would_know_only_the_parameters_on_the_meta_device_is_refused(
    tmp_path: Path, change: Callable[[nn.Module], None] | None, optimizer: Callable[..., Any], told: str
) -> None:
    with META:
        model = nn.Linear(2, 2)
    if change is not None:
        change(model)
    own = sharded(model) if optimizer is sharded else optimizer(model.parameters(), lr=0.1)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    with pytest.raises(ValueError, match=told):
        smddp.Trainer(job, model, own)


def test_a_model_on_the_meta_device_trains_in_one_process(tmp_path: Path) -> None:
    with META:
        model = nn.Linear(2, 2)
    trainer = smddp.Trainer(
        Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), model, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    before = model.weight.detach().clone()
    trainer.step(trainer.model(torch.ones(1, 2)).square().mean())
    assert not model.weight.equal(before)
