"""A process group that the script has made itself, in each of torch's ways, is the job's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore

from smddp.distributed import join, leave

PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
import smddp
from smddp.distributed import Agreement
from smddp.process.preemption import StopSignal

way = os.environ["WAY"]
kept = ("RANK", "WORLD_SIZE") if way == "env" else ()
place = {name: os.environ.pop(name) if name not in kept else os.environ[name] for name in
         ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
rank = int(place["RANK"])
methods = {
    "env": "env://",
    "tcp": f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}",
    "file": f"file://{os.path.abspath('meeting')}",
}
if way != "env":
    del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
dist.init_process_group("gloo", init_method=methods[way], rank=rank, world_size=2)

def train(job):
    membership = smddp.distributed.current_membership()
    cluster = membership.cluster
    assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_world_size) == (rank, 2, rank, 2)
    assert membership.ranks.gather(lambda: rank) == [0, 1]
    assert membership.ranks.from_rank(1, rank if rank == 1 else None) == 1
    stop = StopSignal()
    stop.requested = rank == 1
    assert Agreement(membership, stop).decide(1).stop
    model = torch.nn.Linear(1, 1)
    policy = smddp.CheckpointPolicy(every=3)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), checkpoints=policy)
    loader = trainer.loader(TensorDataset(torch.arange(24.0).reshape(24, 1)), batch_size=4)
    seen = []
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches(loader):
            seen += batch.flatten().tolist()
            trainer.step(trainer.model(batch).mean())
    print(json.dumps([job.cluster.rank, seen]))

if os.environ.get("RUN"):
    smddp.run(train)
smddp.join()
train(smddp.Job.detect(cluster=smddp.distributed.current_membership().cluster))
smddp.leave()
total = torch.ones(1)
dist.all_reduce(total)  # the group is the script's, and stays
assert total.item() == 2
smddp.join()
smddp.leave()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("way", "run"), [("env", ""), ("tcp", ""), ("file", ""), ("tcp", "1")])
@pytest.mark.slow
def test_the_ranks_train_in_the_scripts_own_group(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, run: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ranks = run_ranks(PROGRAM, [{"WAY": way, "RUN": run, "SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    seen = [json.loads(rank.printed) for rank in ranks]
    assert [rank for rank, _ in seen] == [0, 1]
    assert sorted(seen[0][1] + seen[1][1]) == [float(number) for number in range(24)]


CONTRADICTION = """
import os
import torch.distributed as dist
import smddp
from smddp.errors import DistributedError

rank = int(os.environ["RANK"])
method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=method, rank=1 - rank, world_size=2)
dist.barrier()  # no rank ends while the other one still connects
try:
    smddp.join()
except DistributedError as error:
    print(error)
try:
    smddp.join(backend="nccl")
except DistributedError as error:
    print(error)
"""


def test_a_group_that_contradicts_the_environment_is_refused(run_ranks: Callable[..., list[Any]]) -> None:
    first, _ = run_ranks(CONTRADICTION)
    assert first.code == 0, first.logged
    ranks, backends = first.printed.splitlines()
    assert "this is rank 1 of 2, but it is rank 0 of 2 by RANK=0" in ranks
    assert "backend='nccl', but the script has made a process group with cpu:gloo" in backends


def test_a_group_of_one_is_adopted_and_stays() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        membership = join()
        assert (membership.cluster.world_size, membership.store, membership.is_adopted) == (1, None, True)
        leave()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
