"""The trainer on two ranks is the trainer on one: same data, same gradients, whatever is accumulated or left over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import dataclasses
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp

def train(job, accumulate):
    torch.manual_seed(1 + job.cluster.rank)
    images = torch.randn(43, 6, generator=torch.Generator().manual_seed(7))
    model = nn.Linear(6, 1)
    if job.cluster.rank == 0:
        nn.init.constant_(model.weight, 0.1)
        nn.init.constant_(model.bias, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = smddp.Trainer(job, model, optimizer, accumulate=accumulate)
    loader = trainer.loader(TensorDataset(images), batch_size=8, tail="short")
    evaluation = trainer.evaluation_loader(TensorDataset(images[:5]), batch_size=1)
    for epoch in trainer.epochs(3):
        for (batch,) in trainer.batches(loader):
            trainer.step((trainer.model(batch) - batch.sum(dim=1, keepdim=True)).square().mean())
        with torch.no_grad():
            total = trainer.sum(sum(trainer.model(batch).double().sum() for (batch,) in trainer.batches(evaluation)))
    print(trainer.steps, " ".join(f"{x:.4f}" for x in [*model.weight.flatten().tolist(), total.item()]))

def main(job):
    for accumulate in (1, 2):
        train(dataclasses.replace(job, checkpoint_dir=job.checkpoint_dir / str(accumulate)), accumulate)

smddp.run(main)
"""


@pytest.mark.slow
def test_one_rank_or_two_with_and_without_accumulation_train_alike(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    alone = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "SMDDP_RUN_DIR": str(tmp_path / "alone")}
    ranks = run_ranks(PROGRAM, [alone]) + run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "two")}] * 2)

    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    results = [line for rank in ranks for line in rank.printed.splitlines()]
    assert len(results) == 6
    assert len(set(results)) == 1, results
    assert results[0].startswith("18 ")
