"""Amazon's SMDDP as the backend, by a stand-in that is as narrow as the real one: the whole of training keeps to it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

with_python_groups = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "_set_default_backend"), reason="this PyTorch makes no process group in Python"
)

STAND_INS = Path(__file__).parents[2] / "stand_ins"
ASKED_FOR = {"SM_FRAMEWORK_PARAMS": json.dumps({"sagemaker_distributed_dataparallel_enabled": True})}
INSTALLED = {"PYTHONPATH": str(STAND_INS)}

TRAINS = """
import os, signal
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
import smddp

def main(job):
    torch.manual_seed(1 + job.cluster.rank)
    images = torch.randn(120, 6, generator=torch.Generator().manual_seed(7))
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    policy = smddp.CheckpointPolicy(every=4)
    trainer = smddp.Trainer(job, model, optimizer, accumulate=2, clip_norm=1.0, checkpoints=policy)
    loader = trainer.loader(TensorDataset(images), batch_size=24)
    evaluation = trainer.evaluation_loader(TensorDataset(images[:5]), batch_size=1)
    for epoch in trainer.epochs(3):
        model.train()
        for (batch,) in trainer.batches(loader):
            trainer.step((trainer.model(batch) - batch.sum(dim=1, keepdim=True)).square().mean())
            if trainer.steps == 6 and os.environ.get("STOPPED_BY") == str(job.cluster.rank):
                os.kill(os.getpid(), signal.SIGTERM)
        model.eval()
        with torch.no_grad():
            total = trainer.sum(sum(trainer.model(batch).double().sum() for (batch,) in trainer.batches(evaluation)))
    trainer.save_model()
    print(dist.get_backend(), trainer.steps, total.item().hex(), flush=True)

smddp.run(main)
"""


@with_python_groups
@pytest.mark.slow
def test_training_stopped_and_resumed_over_smddp_ends_as_over_gloo(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    over_gloo = run_ranks(TRAINS, [{"SMDDP_RUN_DIR": str(tmp_path / "gloo")}] * 2)
    smddp = {**ASKED_FOR, **INSTALLED, "SMDDP_RUN_DIR": str(tmp_path / "smddp")}
    stopped = run_ranks(TRAINS, [{**smddp, "STOPPED_BY": "1"}] * 2)
    resumed = run_ranks(TRAINS, [smddp] * 2)

    assert [rank.code for rank in stopped] == [75, 75], stopped
    assert [rank.code for rank in over_gloo + resumed] == [0] * 4, over_gloo + resumed
    assert {rank.printed.split()[0] for rank in resumed} == {"smddp"}
    assert "resum" in resumed[0].logged
    assert {tuple(rank.printed.split()[1:]) for rank in resumed} == {
        tuple(rank.printed.split()[1:]) for rank in over_gloo
    }


@pytest.mark.slow
def test_a_job_that_asks_for_smddp_where_it_is_not_trains_over_gloo_and_says_so(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(TRAINS, [{**ASKED_FOR, "SMDDP_RUN_DIR": str(tmp_path)}] * 2)

    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert ranks[0].printed.startswith("gloo ")
    assert "THE JOB ASKS FOR SMDDP" in ranks[0].logged


TRESPASSES = """
import torch
import torch.distributed as dist
import smddp

ATTEMPTS = {
    "a second group": lambda: dist.new_group(),
    "a collective that it lacks": lambda: dist.reduce(torch.ones(1), 0),
    "another reduction": lambda: dist.all_reduce(torch.ones(1), op=dist.ReduceOp.PRODUCT),
    "a second backend": lambda: dist.all_reduce(torch.ones(1)),
}
smddp.join()
for name, attempt in ATTEMPTS.items():
    if name == "a second backend":
        dist.barrier(dist.new_group(backend="gloo"))  # no rank ends while another one still connects
    try:
        attempt()
    except RuntimeError as error:
        print(f"{name}: {error}")
dist.destroy_process_group()
"""


@with_python_groups
def test_the_stand_in_is_as_narrow_as_the_documented_library(run_ranks: Callable[..., list[Any]]) -> None:
    for rank in run_ranks(TRESPASSES, [{**ASKED_FOR, **INSTALLED}] * 2):
        assert rank.printed.splitlines() == [
            "a second group: smddp supports no new_group()",
            "a collective that it lacks: smddp has no reduce",
            "another reduction: smddp reduces by SUM, MIN and MAX only",
            "a second backend: smddp can't be used beside another process group, of whatever backend",
        ], rank.logged
