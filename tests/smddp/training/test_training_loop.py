"""Loops that leave out a part of the Trainer, which would train otherwise than the script says, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smddp import Job, Trainer

NO_STEP = "trainer.step(loss) was never called"
ELSEWHERE = "from neither trainer.loader() nor trainer.batches()"

PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import smddp

def main(job):
    model = nn.Linear(4, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(16, 4))
    {loader}
    for _ in trainer.epochs(2):
        for (inputs,) in {batches}:
            trainer.step(trainer.model(inputs).square().mean())

if __name__ == "__main__":
    smddp.run(main)
"""


@pytest.mark.parametrize(
    ("loader", "batches", "told"),
    [
        ("loader = DataLoader(data, batch_size=4, shuffle=True)", "loader", 1),
        ("loader = trainer.loader(data, batch_size=8)", "loader", 0),
        ("loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))", "trainer.batches(loader)", 0),
    ],
)
def test_several_ranks_that_step_on_batches_from_elsewhere_are_warned_once(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, loader: str, batches: str, told: int
) -> None:
    program = PROGRAM.format(loader=loader, batches=batches)
    ranks = run_ranks(program, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert [rank.logged.count(ELSEWHERE) for rank in ranks] == [told, 0]


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("by", ["optimizer", "trainer", "nothing"])
def test_an_epoch_with_batches_and_without_a_step_is_warned_of_once(
    by: str, wraps: bool, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(job, model, optimizer)
    own = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
    loader = trainer.loader(own) if wraps else own
    for _ in trainer.epochs(2):
        for (inputs,) in trainer.batches(loader) if wraps else loader:
            loss = trainer.model(inputs).square().mean()
            if by == "trainer":
                trainer.step(loss)
            elif by == "optimizer":
                loss.backward()
                optimizer.step()
    assert caplog.text.count(NO_STEP) == (by != "trainer")


def test_an_epoch_whose_loader_gives_no_batch_needs_no_step(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in trainer.epochs(1):
        assert list(trainer.batches(list[torch.Tensor]())) == []
    assert NO_STEP not in caplog.text
