"""ZeroRedundancyOptimizer: each rank keeps a share of the state; a checkpoint has it whole, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
import smddp

def made(kind, model):
    decayed, others = [model[0].weight, model[2].weight], [model[0].bias, model[2].bias]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if kind == "plain":
        return torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.9))
    return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, lr=0.05, betas=(0.8, 0.9))

def train(job, name, kind, steps, precision="fp32"):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 31), nn.Tanh(), nn.Linear(31, 1))
    optimizer = made(kind, model)
    trainer = smddp.Trainer(
        job, model, optimizer, name=name, precision=precision, accumulate=2, clip_norm=0.5,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12),
    )
    images = torch.randn(96, 6, generator=torch.Generator().manual_seed(7))
    loader = trainer.loader(torch.utils.data.TensorDataset(images), batch_size=12)
    batches = trainer.batches(loader)
    for _ in trainer.steps_to(steps):
        (batch,) = next(batches)
        trainer.step((trainer.model(batch) - batch[:, :1]).square().mean())
    if kind == "sharded" and job.cluster.world_size > 1:
        assert 0 < len(optimizer.optim.state) < 4  # of four parameters
    return tuple(value for weight in model.parameters() for value in weight.flatten().tolist())

def main(job):
    for precision in ("fp32", "fp16"):
        ends = [train(job, f"{kind}-{precision}", kind, STEPS, precision) for kind in ("plain", "sharded")]
        assert ends[0] == ends[1], precision
    if PART == "first":
        train(job, "same", "sharded", STEPS)
        train(job, "crossed", "plain", STEPS)
    if PART == "last":
        whole = train(job, "whole", "sharded", STEPS)
        assert train(job, "same", "sharded", STEPS) == whole
        assert train(job, "crossed", "sharded", STEPS) == whole
    print(STEPS, job.cluster.world_size)

smddp.run(main)
"""


@pytest.mark.slow
def test_it_trains_and_resumes_on_any_number_of_ranks_as_the_plain_optimizer_does(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    # Three nodes of one rank each: ranks 1 and 2 write nothing, and give their shares to rank 0, which does.
    layouts = [(2, 2, "first"), (3, 1, ""), (1, 1, ""), (2, 2, "last")]
    for number, (world_size, on_node, part) in enumerate(layouts, start=1):
        program = PROGRAM.replace("STEPS", str(3 * number)).replace("PART", repr(part))
        size = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": on_node, "SMDDP_RUN_DIR": tmp_path / "run"}
        ranks = run_ranks(program, [{**size, "LOCAL_RANK": rank % on_node} for rank in range(world_size)])
        assert [rank.code for rank in ranks] == [0] * world_size, ranks
        assert {rank.printed for rank in ranks} == {f"{3 * number} {world_size}\n"}
