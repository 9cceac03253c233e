"""The ranks' gradients are added in the same order in every step, the first after a start included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp

class OutOfOrder(nn.Module):
    '''Layers that are declared in another order than they are used in, and fill several buckets.'''

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(801, 3)
        self.first = nn.Linear(7, 703)
        self.middle = nn.Linear(703, 801)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))

def main(job):
    torch.manual_seed(1)
    data = torch.randn(48, 7)
    model = OutOfOrder()
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert all(parameter.grad is None for parameter in model.parameters())
    loader = trainer.loader(TensorDataset(data), batch_size=12)
    for epoch in trainer.epochs(int(sys.argv[1])):
        for (batch,) in trainer.batches(loader):
            trainer.step((trainer.model(batch) - batch[:, :3]).square().mean())
    digest = hash(tuple(value for parameter in model.parameters() for value in parameter.flatten().tolist()))
    print(trainer.steps, digest)

smddp.run(main)
"""


@pytest.mark.slow
def test_three_ranks_that_resume_have_the_bits_of_three_that_were_never_disturbed(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    def weights(directory: str, epochs: int) -> set[str]:
        own = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "SMDDP_RUN_DIR": str(tmp_path / directory)}
        ranks = run_ranks(PROGRAM.replace("sys.argv[1]", str(epochs)), [own] * 3)
        assert [rank.code for rank in ranks] == [0, 0, 0], ranks
        return {rank.printed.strip() for rank in ranks}

    undisturbed = weights("undisturbed", 2)
    for epochs in (1, 2):
        resumed = weights("resumed", epochs)

    assert len(undisturbed) == 1
    assert next(iter(undisturbed)).startswith("8 ")
    assert resumed == undisturbed
