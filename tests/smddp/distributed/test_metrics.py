"""Metrics of two ranks: gathered, reduced, and kept over a resume; what does not fit is an error on both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp
from smddp.distributed import PeerFailedError

def raised(action, *kinds):
    try:
        action()
    except kinds as error:
        return str(error)
    raise AssertionError("nothing was raised")

def made(job, **options):
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    return smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
"""

GATHERS = (
    HEAD
    + """
def main(job):
    rank = job.cluster.rank
    trainer = made(job)
    weight = torch.ones(rank + 1, 2, requires_grad=True) * (rank + 1)
    gathered = trainer.gather(weight)
    assert gathered.tolist() == [[1, 1], [2, 2], [2, 2]] and not gathered.requires_grad, gathered
    assert trainer.gather(torch.tensor(rank)).tolist() == [0, 1]
    assert trainer.gather(torch.zeros(3 * rank, dtype=torch.bool)).tolist() == [False] * 3
    assert trainer.gather(torch.zeros(0, 2)).shape == (0, 2)
    for dtype in (torch.bfloat16, torch.complex64, torch.uint8):
        assert torch.equal(trainer.gather(torch.tensor([rank], dtype=dtype)), torch.tensor([0, 1], dtype=dtype))
    assert trainer.gather(torch.tensor([1j * (rank + 1)]).conj()).tolist() == [-1j, -2j]
    assert trainer.sum(torch.tensor([True, rank == 0])).tolist() == [2, 1]  # as torch's own sum()
    assert trainer.sum(torch.tensor(100, dtype=torch.int8)).item() == 200
    assert trainer.sum(torch.tensor([1.0 + rank + 1j]).conj().imag).tolist() == [-2.0]
    transposed = torch.arange(6.0).reshape(2, 3).t() + rank
    assert torch.equal(trainer.gather(transposed)[3:], torch.arange(6.0).reshape(2, 3).t() + 1)

    found = raised(lambda: trainer.gather(torch.zeros(1, 2 + rank)), ValueError)
    assert "rank 0 [1, 2] torch.float32 cpu, rank 1 [1, 3] torch.float32 cpu" in found, found
    raised(lambda: trainer.gather(torch.zeros(1, dtype=torch.int64 if rank else torch.int32)), ValueError)
    raised(lambda: trainer.gather(torch.zeros(1, device="meta" if rank else "cpu")), ValueError)
    raised(lambda: trainer.gather(torch.zeros(1) if rank else [0.0]), TypeError if rank == 0 else PeerFailedError)

    assert trainer.log(reduce="mean", loss=torch.tensor(1.0 + rank), seen=10) == {"loss": 1.5, "seen": 10.0}
    assert trainer.log(reduce="sum", seen=10 + rank) == {"seen": 21}
    assert trainer.log(reduce="max", worst=float("nan") if rank else 1.0)["worst"] != 1.0
    assert trainer.log(own=rank) == {"own": rank}
    found = raised(lambda: trainer.log(reduce="sum", **{f"metric_{rank}": 1}), ValueError)
    assert "rank 0 logged metric_0, and rank 1 metric_1" in found, found
    raised(lambda: trainer.log(reduce="sum", bad=None if rank else 1), ValueError if rank else PeerFailedError)

smddp.run(main)
"""
)

MEANS = (
    HEAD
    + """
def train(job, epochs):
    mean, seen = smddp.RunningMean(), []
    trainer = made(job, state={"mean": mean})
    loader = trainer.loader(TensorDataset(torch.arange(8.0).unsqueeze(1)), batch_size=4)
    for _ in trainer.epochs(epochs):
        for (x,) in trainer.batches(loader):
            mean.add(x.mean(), count=len(x))
            trainer.step(trainer.model(x).square().mean() * 0)
        if job.cluster.rank == 0:
            mean.add(11.5)
    return trainer, mean

def main(job):
    trainer, mean = train(job, 2)
    # Two epochs of 0 to 7, and 11.5 twice: on both ranks the same.
    assert trainer.gather(torch.tensor(mean.mean(), dtype=torch.float64)).tolist() == [(2 * 28 + 2 * 11.5) / 18] * 2

smddp.run(main)
"""
)


def test_ranks_gather_and_reduce_or_are_all_told_why_not(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    ranks = run_ranks(GATHERS, [{"SMDDP_RUN_DIR": tmp_path / "run"}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].logged + ranks[1].logged
    assert "loss=1.5 seen=10" in ranks[0].logged
    assert "seen=21" in ranks[0].logged


@pytest.mark.slow
def test_a_running_mean_is_of_all_ranks_and_goes_on_across_a_resume(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    environ = {"SMDDP_RUN_DIR": tmp_path / "run"}
    for program in (
        MEANS.replace("train(job, 2)", "train(job, 1)").replace("2 * 28 + 2 * 11.5) / 18", "28 + 11.5) / 9"),
        MEANS,
    ):
        ranks = run_ranks(program, [environ] * 2)
        assert [rank.code for rank in ranks] == [0, 0], ranks[0].logged + ranks[1].logged
    assert "resumed at step 2" in ranks[0].logged
