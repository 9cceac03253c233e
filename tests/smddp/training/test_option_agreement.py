"""Ranks that were given other options, or other kinds of numbers, than each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smddp.training.argument_checks import optimizer_options

PROGRAM = """
import os
import torch
import smddp

rank = int(os.environ["RANK"])


def trainer(lr=0.1, **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return smddp.Trainer(smddp.Job.detect(), model, optimizer, **options)


differing = {
    "clip_norm": {"clip_norm": 0.1 if rank else None},
    "lr": {"lr": 0.1 + rank},
    "every": {"checkpoints": smddp.CheckpointPolicy(every=2 + rank)},
    "ddp": {"ddp": smddp.DDPOptions(comm_hook="bf16" if rank else None)},
    "state": {"state": {"early": smddp.EarlyStopping(patience=1)} if rank else None},
}
for name, options in differing.items():
    try:
        trainer(**options)
    except ValueError as error:
        print(f"{name}: {error}")
for most, log_every in ((2, 50 + rank), (100 + rank, 50)):  # a few steps lower log_every to the same
    os.environ["SMDDP_MAX_STEPS"] = str(most)
    try:
        trainer(log_every=log_every)
    except ValueError as error:
        print(error)
del os.environ["SMDDP_MAX_STEPS"]
one = trainer(trackers=[smddp.metrics.CsvFile()] if rank == 0 else [], timing=rank == 0)  # rank 0's own affair
print("sum", one.sum([1.5, 2.0] if rank else [1, 2]).tolist())
print("count", one.sum([2, 3]).dtype, one.sum(-(2**53) - 1 + rank).item())
smddp.leave()
"""


def test_they_are_told_so_before_the_first_step_and_sums_are_right(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    for rank in ranks:
        clip, lr, every, ddp, state, log_every, most, total, count = rank.printed.splitlines()
        assert "clip_norm is None on rank 0 and 0.1 on rank 1" in clip
        assert clip.endswith("give all ranks the same")
        assert "'lr': 0.1" in lr
        assert "'lr': 1.1" in lr
        assert "every=2" in every
        assert "every=3" in every
        assert "comm_hook=None" in ddp
        assert "comm_hook='bf16'" in ddp
        assert "state is [] on rank 0 and ['early'] on rank 1" in state
        assert "log_every is 50 on rank 0 and 51 on rank 1" in log_every
        assert "SMDDP_MAX_STEPS is 100 on rank 0 and 101 on rank 1" in most
        assert total == "sum [2.5, 4.0]"
        assert count == f"count torch.int64 {-(2**54) - 1}"


def test_a_rate_on_the_device_is_compared_as_a_number() -> None:
    optimizer = torch.optim.Adam(nn.Linear(2, 1).parameters(), lr=torch.tensor(0.5), capturable=False)
    ((name, groups),) = optimizer_options([optimizer])
    assert name == "Adam"
    assert groups[0]["lr"] == 0.5
    assert "params" not in groups[0]
