"""DDP's options through smddp: the gradients are those of PyTorch's own DDP with the same option, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from smddp import DDPOptions
from smddp.distributed import replica


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bucket_cap_mb": 0}, "bucket_cap_mb=0 must be a number greater than 0"),
        ({"bucket_cap_mb": "25"}, "bucket_cap_mb='25' must be a number greater than 0"),
        ({"static_graph": "no"}, "static_graph='no': give True or False"),
        ({"sync_batchnorm": None}, "sync_batchnorm=None: give True or False"),
        ({"static_graph": True, "find_unused_parameters": True}, "leave find_unused_parameters out"),
        ({"comm_hook": "int8"}, "comm_hook='int8' is unknown; use one of 'fp16', 'bf16', 'powersgd', or None"),
        ({"powersgd_rank": 0}, "powersgd_rank=0 must be a whole number of at least 1"),
        ({"powersgd_rank": 1.5}, "powersgd_rank=1.5 must be a whole number"),
        ({"powersgd_start_step": 1}, "powersgd_start_step=1 must be a whole number of at least 2"),
        ({"powersgd_start_step": "9"}, "powersgd_start_step='9' must be a whole number"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DDPOptions(**options)


def test_batchnorm_is_synchronized_with_the_same_weights_and_names() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3))).to("meta")
    weights, names = {id(weight) for weight in model.parameters()}, list(model.state_dict())
    converted = replica._with_sync_batchnorm(model)
    assert isinstance(converted[1][0], nn.SyncBatchNorm)  # type: ignore[index]
    assert {id(weight) for weight in converted.parameters()} == weights
    assert list(converted.state_dict()) == names


HEAD = """
import dataclasses
import logging
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
import smddp
from smddp import DDPOptions

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(24, 40)
        self.branch = nn.Linear(40, 40)
        self.last = nn.Linear(40, 3)

    def forward(self, x, branch=True):
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.branch(x)) if branch else x)

def batch(rank, step):
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * step + rank))

def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])

def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
"""

PARITY = (
    HEAD
    + """
PLAIN = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}

def by_hand(rank, options, accumulate, branch, precision):
    model = Model()
    ddp = DistributedDataParallel(
        model,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused_parameters,
    )
    if options.comm_hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, options.powersgd_rank, start_powerSGD_iter=options.powersgd_start_step
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif options.comm_hook:
        ddp.register_comm_hook(None, PLAIN[options.comm_hook])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    for step in range(6):
        for micro in range(accumulate):
            ddp.require_backward_grad_sync = micro == accumulate - 1
            with torch.autocast("cpu", torch.float16, enabled=precision == "fp16"):
                loss = ddp(batch(rank, 10 * step + micro), branch(step)).float().square().mean() / accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return flat(model)

def with_smddp(job, options, accumulate, branch, precision):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = smddp.Trainer(
        job, model, optimizer, accumulate=accumulate, precision=precision, parallel=options, name=f"run-{next(names)}"
    )
    for step in range(6):
        for micro in range(accumulate):
            x = batch(job.cluster.rank, 10 * step + micro)
            trainer.step(trainer.model(x, branch(step)).square().mean())
    return flat(model)

def always(step):
    return True

def sometimes(step):
    return step % 2 == 0

def never(step):
    return False

names = iter(range(100))
OF_POWERSGD = dict(comm_hook="powersgd", powersgd_rank=2, powersgd_start_step=2)
CASES = [
    (dict(bucket_cap_mb=0.001), 1, always, "fp32"),
    (dict(bucket_cap_mb=0.001), 3, always, "fp32"),
    (dict(gradient_as_bucket_view=True), 2, always, "fp32"),
    (dict(static_graph=True), 1, never, "fp32"),
    (dict(find_unused_parameters=True), 1, sometimes, "fp32"),
    (dict(find_unused_parameters=True, gradient_as_bucket_view=True), 2, sometimes, "fp32"),
    (dict(comm_hook="fp16"), 1, always, "fp32"),
    (dict(comm_hook="fp16"), 2, always, "fp16"),
    (dict(comm_hook="bf16"), 1, always, "fp32"),
    (dict(comm_hook="bf16", find_unused_parameters=True), 1, sometimes, "fp32"),
    (OF_POWERSGD, 1, always, "fp32"),
    (OF_POWERSGD | dict(gradient_as_bucket_view=True), 2, always, "fp32"),
]

def main(job):
    rank = job.cluster.rank
    weights = []
    for options, *rest in CASES:
        options = DDPOptions(**options)
        own = with_smddp(job, options, *rest)
        assert torch.equal(own, by_hand(rank, options, *rest)), (options, rest)
        weights.append(own)
    plain = with_smddp(job, DDPOptions(), 1, always, "fp32")
    print([number for number, own in enumerate(weights) if torch.equal(own, plain)])

smddp.run(main)
"""
)


@pytest.mark.slow
def test_gradients_are_those_of_pytorchs_ddp_with_the_same_option(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(PARITY, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    # Bucket sizes change no bit of two ranks' sum; hooks, branches and accumulation do.
    assert [rank.printed for rank in ranks] == ["[0]\n"] * 2


REFUSALS = (
    HEAD
    + """
from torch.utils.checkpoint import checkpoint

def trainer_of(job, model, options, name, **others):
    return smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), parallel=options, name=name, **others)

def main(job):
    print(refusal(lambda: trainer_of(job, Model(), DDPOptions(static_graph=True), "static", accumulate=2)))
    norm = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    print(refusal(lambda: trainer_of(job, norm, DDPOptions(sync_batchnorm=True), "norm")))
    trainer = trainer_of(job, Model(), DDPOptions(), "unused")
    def train():
        for step in range(2):
            trainer.step(trainer.model(batch(0, step), False).square().mean())
    print(refusal(train))
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared = nn.Linear(2, 2), nn.Linear(2, 2)
        def forward(self, x):
            once = checkpoint(self.shared, self.first(x), use_reentrant=True)
            return checkpoint(self.shared, once, use_reentrant=True)
    trainer = trainer_of(job, Twice(), DDPOptions(), "twice")
    print(refusal(lambda: trainer.step(trainer.model(torch.ones(1, 2)).sum())))

smddp.run(main)
"""
)


@pytest.mark.slow
def test_what_ddp_cannot_do_is_told_with_the_remedy(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    ranks = run_ranks(REFUSALS, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    static, norm, unused, twice = ranks[0].printed.splitlines()
    assert "static_graph can't be combined with accumulate" in static
    assert "sync_batchnorm needs the model on GPUs" in norm
    assert "did not depend on branch.weight, branch.bias of the model" in unused
    assert "find_unused_parameters=True" in unused
    assert "the gradient of shared." in twice
    assert "came twice in one backward pass" in twice
    assert "use_reentrant=False" in twice


POWERSGD = (
    HEAD
    + """
OPTIONS = DDPOptions(comm_hook="powersgd", powersgd_rank=2, powersgd_start_step=2)

def main(job):
    logging.getLogger("smddp.distributed.ddp_options").setLevel("INFO")
    directory, steps, unfreeze_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = Model()
    model.branch.requires_grad_(False)
    trainer = smddp.Trainer(
        dataclasses.replace(job, checkpoint_dir=job.checkpoint_dir / directory), model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), parallel=OPTIONS,
    )
    trainer.resume()
    for step in trainer.steps_to(steps):
        model.branch.requires_grad_(step >= unfreeze_at)
        trainer.step(trainer.model(batch(job.cluster.rank, step)).square().mean())
    print(trainer.steps, hash(tuple(flat(model).tolist())))

smddp.run(main)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("unfreeze_at", [99, 2])
def test_powersgd_goes_on_exactly_on_as_many_ranks_and_anew_on_others(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, unfreeze_at: int
) -> None:
    def train(directory: str, steps: int, world_size: int = 2) -> list[Any]:
        size = {name: str(world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        program = POWERSGD.replace("sys.argv[1]", repr(directory)).replace("sys.argv[2]", str(steps))
        environ = {"SMDDP_RUN_DIR": str(tmp_path / "run"), **size}
        ranks = run_ranks(program.replace("sys.argv[3]", str(unfreeze_at)), [environ] * world_size)
        assert [rank.code for rank in ranks] == [0] * world_size, ranks
        return ranks

    undisturbed = {rank.printed for rank in train("undisturbed", 9)}
    train("resumed", 6)
    resumed = train("resumed", 9)

    assert len(undisturbed) == 1
    assert {rank.printed for rank in resumed} == undisturbed
    assert "PowerSGD begins anew" not in resumed[0].logged
    if unfreeze_at == 99:
        assert train("resumed", 10, world_size=1)[0].code == 0
        on_two = train("resumed", 12)
        told = "PowerSGD begins anew, 2 steps from now: the checkpoint's is that of 1 rank"
        assert on_two[0].logged.count(told) == 1


SHORT_WINDOW = (
    HEAD
    + """
def main(job):
    rank, model = job.cluster.rank, Model()
    trainer = smddp.Trainer(
        job, model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=4,
        parallel=DDPOptions(find_unused_parameters=True),
    )
    counts = COUNTS
    for _ in trainer.epochs(1):
        for x in trainer.batches([batch(rank, step) for step in range(counts[rank])]):
            trainer.step(trainer.model(x, rank == 0).square().mean())
    by_hand = Model()
    for of_rank in range(2):
        for step in range(counts[of_rank]):
            (by_hand(batch(of_rank, step), of_rank == 0).square().mean() / sum(counts)).backward()
    torch.optim.SGD(by_hand.parameters(), lr=0.1).step()
    torch.testing.assert_close(flat(model), flat(by_hand))
    print(trainer.steps, hash(tuple(flat(model).tolist())))

smddp.run(main)
"""
)


@pytest.mark.parametrize("counts", [[2, 2], [1, 3]])
@pytest.mark.slow
def test_a_short_window_is_the_mean_over_the_micro_batches_of_all_ranks(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, counts: list[int]
) -> None:
    program = SHORT_WINDOW.replace("COUNTS", repr(counts))
    ranks = run_ranks(program, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert len({rank.printed for rank in ranks}) == 1


@pytest.mark.slow
def test_an_epoch_that_ends_within_a_step_on_some_ranks_only_is_refused(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    program = SHORT_WINDOW.replace("COUNTS", "[4, 5]")
    ranks = run_ranks(program, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert all(rank.code for rank in ranks)
    told = (
        "unequal steps: the epoch has ended with micro-batches of optimizer step 2 on rank 1, and with none on rank 0"
    )
    assert told in ranks[0].logged
