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


BUFFERS = """
import torch
import torch.distributed as dist
from torch import nn
import smddp
from smddp.distributed import Replica, replica

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("scalar", torch.tensor(0))
        self.register_buffer("transposed", torch.zeros(3, 2).t())
        self.register_buffer("strided", torch.zeros(4, 4)[::2])
        self.register_buffer("channels", torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last))
        self.register_buffer("mask", torch.tensor([False]))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("large", torch.zeros(100))

membership = smddp.join()
model = Model()
shared = Replica(model, membership)
layouts = [buffer.stride() for buffer in model.buffers()]
for buffer in model.buffers():
    buffer.fill_(membership.cluster.rank)
count = []
broadcast = dist.broadcast
dist.broadcast = lambda tensor, src: (count.append(tensor.nbytes), broadcast(tensor, src=src))
replica._PIECE = 256
shared.share_buffers()
assert not any(buffer.any() for buffer in model.buffers()), list(model.buffers())
assert [buffer.stride() for buffer in model.buffers()] == layouts
print(sorted(count))
smddp.leave()
"""


def test_buffers_of_any_layout_are_shared_in_few_broadcasts(run_ranks: Callable[..., list[Any]]) -> None:
    ranks = run_ranks(BUFFERS)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert [rank.printed for rank in ranks] == ["[1, 8, 88, 400]\n"] * 2
